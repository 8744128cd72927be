"""What a model may ask of the server about other models, before anything is sent."""

from __future__ import annotations

import pytest
import triton_python_backend_utils as pb_utils

from protocol.messages import CONTROL, TOLD, Control, Told
from stub import calls, model_control
from stub.triton_error import TritonModelException


@pytest.fixture
def asked(monkeypatch) -> list[Control]:
    """What is asked; each is answered with yes."""
    messages: list[Control] = []

    def ask(make):
        messages.append(make(1))
        return Told(TOLD, 1, None, 1.0)

    monkeypatch.setattr(calls, "ask", ask)
    return messages


def test_without_a_server_it_says_so():
    for call, prefix in (
        (lambda: pb_utils.load_model("m"), "Failed to load model: "),
        (lambda: pb_utils.unload_model("m"), "Failed to unload model: "),
        (lambda: pb_utils.is_model_ready("m"), "Failed to check model readiness: "),
    ):
        with pytest.raises(pb_utils.TritonModelException, match=f"^{prefix}there is no server to ask"):
            call()


def test_everything_may_be_named(asked):
    model_control.load_model(model_name="m", config="{}", files={"file:1/model.py": b"x", b"file:1/a": "é"})
    model_control.unload_model(model_name="m", unload_dependents=True)
    assert model_control.is_model_ready(model_name="m", model_version="1") is True
    assert asked == [
        Control(CONTROL, 1, "load", "m", config="{}", files={"file:1/model.py": b"x", "file:1/a": "é".encode()}),
        Control(CONTROL, 1, "unload", "m", unload_dependents=True),
        Control(CONTROL, 1, "is_ready", "m", "1"),
    ]


def test_a_load_without_more_brings_nothing(asked):
    model_control.load_model("m")
    assert asked == [Control(CONTROL, 1, "load", "m")]


def test_files_are_a_dictionary(asked):
    text = "^failed to load model 'm', files should be a dictionary of file paths and file contents$"
    for files in ([], "x", b"x", 3):
        with pytest.raises(TritonModelException, match=text):
            model_control.load_model("m", "{}", files)
    with pytest.raises(TypeError):
        model_control.load_model("m", "{}", {"file:1/model.py": 3})
    assert asked == []


@pytest.mark.parametrize("call", [model_control.load_model, model_control.unload_model, model_control.is_model_ready])
def test_names_and_versions_are_text(asked, call):
    with pytest.raises(TypeError):
        call(3)
    with pytest.raises(TypeError, match=r"1\. \(model_name: str, model_version: str = ''\) -> bool"):
        model_control.is_model_ready("m", 1)
    assert asked == []


def test_a_refusal_is_an_exception(monkeypatch):
    monkeypatch.setattr(calls, "ask", lambda make: Told(TOLD, 1, (4, "Server not ready")))
    with pytest.raises(TritonModelException, match=r"^Failed to unload model: Server not ready$"):
        model_control.unload_model("m")
