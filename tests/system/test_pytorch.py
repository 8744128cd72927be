"""The pytorch backend, with modules that are made here."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.system.conftest import Repository, Start, together

torch = pytest.importorskip("torch", reason="the package torch is not installed")
httpclient = pytest.importorskip("tritonclient.http")

CONFIG = """
backend: "pytorch"
max_batch_size: 8
input [
  { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 3 ] },
  { name: "INPUT__1" data_type: TYPE_FP32 dims: [ 3 ] }
]
output [
  { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 3 ] },
  { name: "OUTPUT__1" data_type: TYPE_FP32 dims: [ 3 ] }
]
"""
ONE = np.float32([[1, 2, 3]])
TEN = np.float32([[10, 20, 30]])


class AddSub(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + y, x - y


class Named(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"twice": x * 2, "more": x + 1}


class Identity(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def script(module: Any, path: Path) -> None:
    torch.jit.script(module).save(str(path))


def export(module: Any, path: Path) -> None:
    batch = torch.export.Dim("batch")
    arguments = {"x": {0: batch}} if isinstance(module, Named) else {"x": {0: batch}, "y": {0: batch}}
    example = tuple(torch.ones(2, 3) for _ in arguments)
    torch.export.save(torch.export.export(module, example, dynamic_shapes=arguments), path)


def add(repository: Repository, name: str, config: str, file: str = "model.pt") -> Path:
    directory = repository.path / name / "1"
    directory.mkdir(parents=True)
    (repository.path / name / "config.pbtxt").write_text(textwrap.dedent(config))
    return directory / file


def infer(server: Any, model: str, inputs: dict[str, Any], outputs: Sequence[str] = (), datatype: str = "FP32") -> Any:
    given = []
    for name, array in inputs.items():
        tensor = httpclient.InferInput(name, array.shape, datatype)
        tensor.set_data_from_numpy(array)
        given.append(tensor)
    asked = [httpclient.InferRequestedOutput(name) for name in outputs] or None
    with httpclient.InferenceServerClient(server.http) as client:
        return client.infer(model, given, outputs=asked)


def indexed(x: Any, y: Any) -> dict[str, Any]:
    return {"INPUT__0": x, "INPUT__1": y}


@pytest.mark.parametrize("save, file", [(script, "model.pt"), (export, "model.pt2")])
def test_both_kinds_of_file_are_served(repository: Repository, start: Start, save: Any, file: str) -> None:
    save(AddSub(), add(repository, "m", CONFIG, file))
    server = start()
    result = infer(server, "m", indexed(TEN, ONE))
    assert result.as_numpy("OUTPUT__0").tolist() == [[11, 22, 33]]
    assert result.as_numpy("OUTPUT__1").tolist() == [[9, 18, 27]]
    assert infer(server, "m", indexed(ONE, TEN), ["OUTPUT__1"]).as_numpy("OUTPUT__0") is None
    assert server.lines("| pytorch |")


@pytest.mark.parametrize("save, file", [(script, "model.pt"), (export, "model.pt2")])
def test_names_of_arguments_and_results_are_understood(
    repository: Repository, start: Start, save: Any, file: str
) -> None:
    config = """
    input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 3 ] } ]
    output [
      { name: "more" data_type: TYPE_FP32 dims: [ -1, 3 ] },
      { name: "twice" data_type: TYPE_FP32 dims: [ -1, 3 ] }
    ]
    """
    save(Named(), add(repository, "m", config, file))
    result = infer(start(), "m", {"x": TEN})
    assert result.as_numpy("twice").tolist() == [[20, 40, 60]]
    assert result.as_numpy("more").tolist() == [[11, 21, 31]]


def test_what_a_module_of_another_order_is_given_follows_the_names(repository: Repository, start: Start) -> None:
    config = CONFIG.replace("INPUT__0", "y").replace("INPUT__1", "x")
    script(AddSub(), add(repository, "m", config))
    result = infer(start(), "m", {"y": ONE, "x": TEN})
    assert result.as_numpy("OUTPUT__1").tolist() == [[9, 18, 27]]


VALUES = [
    ("FP16", np.float16([1.5, -2])),
    ("FP64", np.float64([1e300])),
    ("BOOL", np.array([True, False])),
    ("INT8", np.int8([-128, 127])),
    ("UINT8", np.uint8([255])),
    ("INT64", np.int64([-(2**63)])),
    ("FP32", np.zeros(0, np.float32)),
]


def test_datatypes_go_through(repository: Repository, start: Start) -> None:
    for datatype, _ in VALUES:
        tensor = f"data_type: TYPE_{datatype} dims: [ -1 ]"
        config = f'input [ {{ name: "A" {tensor} }} ] output [ {{ name: "B" {tensor} }} ]'
        script(Identity(), add(repository, datatype, config))
    server = start()
    for datatype, array in VALUES:
        result = infer(server, datatype, {"A": array}, datatype=datatype).as_numpy("B")
        assert result.dtype == array.dtype and result.tolist() == array.tolist(), datatype


def test_a_result_of_another_type_than_configured_is_an_error(repository: Repository, start: Start) -> None:
    config = """
    input [ { name: "A" data_type: TYPE_FP32 dims: [ -1 ] } ]
    output [ { name: "B" data_type: TYPE_INT64 dims: [ -1 ] } ]
    """
    script(Identity(), add(repository, "m", config))
    with pytest.raises(Exception, match="unexpected datatype TYPE_FP32 for inference output 'B', expecting TYPE_INT64"):
        infer(start(), "m", {"A": ONE[0]})


def test_a_run_that_fails_is_told_and_the_instance_lives(repository: Repository, start: Start) -> None:
    script(AddSub(), add(repository, "m", CONFIG.replace("[ 3 ]", "[ -1 ]")))
    server = start()
    pid = server.stub("m").pid
    with pytest.raises(Exception, match=r"(?s)PyTorch execute failure: .*must match the size of tensor b"):
        infer(server, "m", indexed(ONE, ONE[:, :2]))
    assert infer(server, "m", indexed(ONE, ONE)).as_numpy("OUTPUT__0").tolist() == [[2, 4, 6]]
    assert server.stub("m").pid == pid


def test_parameters_of_the_original_are_taken(repository: Repository, start: Start) -> None:
    parameters = {
        "INFERENCE_MODE": "false",
        "DISABLE_OPTIMIZED_EXECUTION": "true",
        "INTRA_OP_THREAD_COUNT": "1",
        "INTER_OP_THREAD_COUNT": "1",
        "ENABLE_WEIGHT_SHARING": "true",
    }
    given = [f'parameters {{ key: "{key}" value {{ string_value: "{text}" }} }}' for key, text in parameters.items()]
    script(AddSub(), add(repository, "m", CONFIG + "\n".join(given)))
    assert infer(start(), "m", indexed(ONE, TEN)).as_numpy("OUTPUT__0").tolist() == [[11, 22, 33]]


def test_many_clients_at_once_get_their_own_answers(repository: Repository, start: Start) -> None:
    script(AddSub(), add(repository, "m", CONFIG + "dynamic_batching { }"))
    server = start()
    given = [np.full((1 + n % 4, 3), n, np.float32) for n in range(60)]
    jobs = [lambda array=array: infer(server, "m", indexed(array, array)).as_numpy("OUTPUT__0") for array in given]
    results = together(6, jobs)
    assert all(np.array_equal(result, 2 * array) for result, array in zip(results, given, strict=True))


REFUSALS = [
    (b"hello", CONFIG, "Internal: failed to load model 'm': "),
    (None, CONFIG, "Unavailable: unable to find '"),
    (
        AddSub(),
        CONFIG.replace("TYPE_FP32", "TYPE_STRING", 1),
        "Invalid argument: the pytorch backend has no TYPE_STRING for input 'INPUT__0' of model 'm'",
    ),
]


@pytest.mark.parametrize("module, config, text", REFUSALS, ids=["no module", "no file", "strings"])
def test_what_cannot_be_served_is_refused(
    repository: Repository, start: Start, module: Any, config: str, text: str
) -> None:
    path = add(repository, "m", config)
    if isinstance(module, bytes):
        path.write_bytes(module)
    elif module is not None:
        script(module, path)
    server = start("--exit-on-error=false")
    assert server.index()["m:1"]["reason"].startswith(text)
