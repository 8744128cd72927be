"""The examples that come with Triton's Python backend run here with their own clients, models and clients unmodified.

``TENSORBUS_PYTHON_BACKEND`` names a checkout of that repository. The clients take the ports 8000 to 8002 for granted.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.system.conftest import Server

CHECKOUT = os.environ.get("TENSORBUS_PYTHON_BACKEND")
PORTS = (8000, 8001, 8002)
TIMEOUT_S = 100

# Model: the folder of its files, and how their names begin.
ADD_SUB, SQUARE = {"add_sub": ("add_sub", "")}, {"square_int32": ("decoupled", "square_")}
BLS = {**ADD_SUB, "pytorch": ("pytorch", "")}
EXAMPLES = [
    ("add_sub", ADD_SUB, "client.py", "PASS: add_sub", ""),
    (
        "auto_complete",
        {"nobatch_auto_complete": ("auto_complete", "nobatch_"), "batch_auto_complete": ("auto_complete", "batch_")},
        "client.py",
        "PASS: auto_complete",
        "",
    ),
    ("bls", {**BLS, "bls_sync": ("bls", "sync_")}, "sync_client.py", "PASS: BLS Sync", "torch"),
    ("bls", {**BLS, "bls_async": ("bls", "async_")}, "async_client.py", "PASS: BLS Async", "torch"),
    *(
        (
            "bls_decoupled",
            {**SQUARE, f"bls_decoupled_{kind}": ("bls_decoupled", f"{kind}_")},
            f"{kind}_client.py",
            f"PASS: BLS Decoupled {kind.capitalize()}",
            "",
        )
        for kind in ("sync", "async")
    ),
    ("custom_metrics", {"custom_metrics": ("custom_metrics", "")}, "client.py", "PASS: custom_metrics", "requests"),
    ("decoupled", {"repeat_int32": ("decoupled", "repeat_")}, "repeat_client.py", "PASS: repeat_int32", ""),
    ("decoupled", SQUARE, "square_client.py", "PASS: square_int32", ""),
    ("jax", {"jax": ("jax", "")}, "client.py", "PASS: jax", "jax"),
    ("pytorch", {"pytorch": ("pytorch", "")}, "client.py", "PASS: pytorch", "torch"),
]


@pytest.fixture
def examples() -> Path:
    if not CHECKOUT:
        pytest.skip("TENSORBUS_PYTHON_BACKEND is not set: no checkout of Triton's Python backend")
    for port in PORTS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                pytest.skip(f"port {port} is taken")
    return Path(CHECKOUT) / "examples"


def install(examples: Path, repository: Path, models: dict[str, tuple[str, str]]) -> None:
    for model, (folder, prefix) in models.items():
        version = repository / model / "1"
        version.mkdir(parents=True)
        shutil.copy(examples / folder / f"{prefix}model.py", version / "model.py")
        config = examples / folder / f"{prefix}config.pbtxt"
        if config.exists():
            shutil.copy(config, repository / model / "config.pbtxt")


@contextlib.contextmanager
def serving(repository: Path, log: Path) -> Iterator[None]:
    ports = [f"--{kind}-port={port}" for kind, port in zip(("http", "grpc", "metrics"), PORTS, strict=True)]
    server = Server(repository, log, *ports).wait_ready(TIMEOUT_S)
    try:
        yield
    finally:
        assert server.terminate() == 0


def run_client(directory: Path, client: Path, *arguments: str) -> str:
    command = [sys.executable, str(client), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=directory)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("folder", "models", "client", "says", "needs"), EXAMPLES, ids=[one[3] for one in EXAMPLES])
def test_an_example_passes_with_its_own_client(
    examples: Path, tmp_path: Path, folder: str, models: dict[str, tuple[str, str]], client: str, says: str, needs: str
) -> None:
    if needs and importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    install(examples, tmp_path / "models", models)
    with serving(tmp_path / "models", tmp_path / "log"):
        printed = run_client(tmp_path, examples / folder / client)
    assert says in printed


def test_preprocessing_passes_with_its_own_client_and_an_onnx_model(examples: Path, tmp_path: Path) -> None:
    """In place of TensorRT's ResNet: one that knows red, green and blue."""
    missing = [name for name in ("torchvision", "onnxruntime", "onnx", "PIL") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    from PIL import Image

    models = tmp_path / "models"
    shutil.copytree(examples / "preprocessing" / "model_repository", models)
    for model in models.iterdir():
        (model / "1").mkdir()
    shutil.copy(examples / "preprocessing" / "model.py", models / "preprocess" / "1")
    config = models / "resnet50_trt" / "config.pbtxt"
    config.write_text(config.read_text().replace('platform: "tensorrt_plan"', 'backend: "onnxruntime"'))
    write_classifier(models / "resnet50_trt" / "1" / "model.onnx")
    labels = models / "resnet50_trt" / "labels.txt"
    with serving(models, tmp_path / "log"):
        for number, color in enumerate(("red", "lime", "blue")):
            Image.new("RGB", (300, 200), color).save(tmp_path / "image.jpg")
            arguments = ["--image", str(tmp_path / "image.jpg"), "--label_file", str(labels)]
            printed = run_client(tmp_path, examples / "preprocessing" / "client.py", *arguments)
            assert f"Result is class: {labels.read_text().splitlines()[number * 7]}" in printed


HUB = """
import numpy, torch
dependencies = ["torch"]
def nvidia_convnets_processing_utils():
    class Utils:
        def prepare_input_from_uri(self, uri):
            return torch.ones(1, 3, 224, 224)
    return Utils()
"""


def test_instance_kind_passes_on_a_cpu(examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What model and client would fetch from the network lies in torch's cache: random weights, and a picture."""
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    import torch
    import torchvision

    hub = tmp_path / "hub"
    (hub / "NVIDIA_DeepLearningExamples_torchhub").mkdir(parents=True)
    (hub / "NVIDIA_DeepLearningExamples_torchhub" / "hubconf.py").write_text(HUB)
    (hub / "trusted_list").write_text("NVIDIA_DeepLearningExamples\n")
    (hub / "checkpoints").mkdir()
    weights = torchvision.models.ResNet50_Weights.IMAGENET1K_V2
    torch.save(torchvision.models.resnet50().state_dict(), hub / "checkpoints" / weights.url.rpartition("/")[2])
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = examples / "instance_kind"
    install(examples, tmp_path / "models", {"resnet50": ("instance_kind", "")})
    with serving(tmp_path / "models", tmp_path / "log"):
        printed = run_client(tmp_path, folder / "client.py", "--label_file", str(folder / "resnet50_labels.txt"))
    assert "PASS: ResNet50 instance kind" in printed


def write_classifier(path: Path) -> None:
    """The means of the three channels are the scores of the classes 0, 7 and 14."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights = np.zeros((3, 1000), np.float32)
    weights[range(3), [0, 7, 14]] = 1
    nodes = [
        helper.make_node("GlobalAveragePool", ["input"], ["means"]),
        helper.make_node("Flatten", ["means"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["output"]),
    ]
    ends = [
        helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, "height", "width"]),
        helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", 1000]),
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(weights, "weights")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
