from __future__ import annotations

import pytest

from broker.config_backend import complete_backend, platform_fits
from broker.model_config import parse_text
from protocol.errors import InvalidArgument


def completed(text: str = "", files: tuple[str, ...] = (), model: str = "m", folders: tuple[str, ...] = ()):
    message = parse_text(text.encode(), "config.pbtxt")
    complete_backend(message, model, {**dict.fromkeys(files, False), **dict.fromkeys(folders, True)})
    return message.backend, message.platform, message.default_model_filename


@pytest.mark.parametrize(
    ("text", "files", "expected"),
    [
        ("", ("model.py",), ("python", "", "model.py")),
        ('backend: "python"', (), ("python", "", "model.py")),
        ('backend: "python" default_model_filename: "mine.py"', (), ("python", "", "mine.py")),
        ('default_model_filename: "model.py"', (), ("python", "", "model.py")),
        ("", ("model.onnx", "model.py"), ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ('platform: "onnxruntime_onnx"', ("model.py",), ("onnxruntime", "onnxruntime_onnx", "model.onnx")),
        ("", ("model.plan",), ("tensorrt", "tensorrt_plan", "model.plan")),
        ("", ("model.xml",), ("openvino", "", "model.xml")),
        ("", ("model.pt",), ("pytorch", "pytorch_libtorch", "model.pt")),
        ("", ("model.pt2",), ("pytorch", "torch_aoti", "model.pt2")),
        ('backend: "pytorch"', ("model.pt2",), ("pytorch", "torch_aoti", "model.pt2")),
        ('backend: "pytorch"', (), ("pytorch", "pytorch_libtorch", "model.pt")),
        ("", ("model.graphdef",), ("tensorflow", "tensorflow_graphdef", "model.graphdef")),
        ('backend: "identity"', ("model.py",), ("identity", "", "")),
        ('platform: "ensemble"', ("model.py",), ("", "ensemble", "")),
        ('platform: "caffe"', ("model.py",), ("", "caffe", "")),
        ('default_model_filename: "model.bin"', ("model.py",), ("", "", "model.bin")),
    ],
)
def test_the_backend_is_guessed_from_the_configuration_then_from_the_files(text, files, expected):
    assert completed(text, files) == expected


def test_a_folder_that_is_called_like_a_model_file_does_not_count():
    assert completed(folders=("model.plan",), files=("model.py",))[0] == "python"


def test_a_saved_model_is_a_folder():
    assert completed(folders=("model.savedmodel",))[0] == "tensorflow"


def test_a_dot_in_the_name_tells_the_backend():
    assert completed(model="model.identity") == ("identity", "", "model.identity")


def test_a_model_of_no_known_backend_is_refused():
    with pytest.raises(InvalidArgument) as refused:
        completed(files=("weights.bin",))
    assert str(refused.value) == (
        "Invalid model name: Could not determine backend for model 'm' with no backend in model configuration. "
        "Expected model name of the form 'model.<backend_name>'."
    )


def test_an_empty_name_becomes_the_directorys():
    message = parse_text(b'backend: "python"', "config.pbtxt")
    complete_backend(message, "adder", {})
    assert message.name == "adder"


def test_only_known_backends_insist_on_a_platform():
    assert platform_fits(parse_text(b'backend: "python" platform: "anything"', "p"))
    assert platform_fits(parse_text(b'backend: "pytorch" platform: "torch_aoti"', "p"))
    assert not platform_fits(parse_text(b'backend: "onnxruntime" platform: "tensorrt_plan"', "p"))
