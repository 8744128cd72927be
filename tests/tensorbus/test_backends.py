"""Which backends a server or a model in the foreground finds."""

from pathlib import Path

from tensorbus import backends


def test_ours_are_there_without_being_asked_for():
    assert {"onnxruntime", "pytorch"} <= backends.find("/nowhere").keys()


def test_one_of_the_operator_s_comes_before_ours_of_that_name(tmp_path: Path):
    (tmp_path / "pytorch").mkdir()
    (tmp_path / "pytorch" / "model.py").write_text("")
    found = backends.find(str(tmp_path), lambda name: {"of": name})
    assert found["pytorch"].model_file == str(tmp_path / "pytorch" / "model.py")
    assert found["onnxruntime"].settings == {"of": "onnxruntime"}
