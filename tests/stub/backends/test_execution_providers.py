from __future__ import annotations

import pytest

from stub.backends.onnxruntime.execution_providers import CPU, CUDA, providers

OPENVINO = "OpenVINOExecutionProvider"


def config(kind: str, name: str) -> dict:
    accelerator = {"name": name, "parameters": {"precision": "FP16"}}
    accelerators = {f"{kind}_execution_accelerator": [accelerator]}
    return {"name": "m", "optimization": {"execution_accelerators": accelerators}}


@pytest.mark.parametrize("kind", ["CPU", "MODEL"])
def test_only_a_gpu_instance_runs_on_cuda(kind):
    assert providers({}, kind, "0", [CUDA, CPU]) == [CPU]
    assert providers({}, "GPU", "1", [CUDA, CPU]) == [(CUDA, {"device_id": "1"}), CPU]


def test_without_cuda_a_gpu_instance_runs_on_the_cpu():
    assert providers({}, "GPU", "0", [CPU]) == [CPU]


def test_accelerators_come_first_and_only_on_their_device():
    asked = config("cpu", "openvino")
    assert providers(asked, "CPU", "0", [OPENVINO, CPU]) == [(OPENVINO, {"precision": "FP16"}), CPU]
    assert providers(asked, "GPU", "0", [OPENVINO, CUDA, CPU]) == [(CUDA, {"device_id": "0"}), CPU]


@pytest.mark.parametrize("name", ["openvino", "nosuch"])
def test_an_accelerator_that_is_not_there_is_refused(name):
    with pytest.raises(ValueError) as refused:
        providers(config("cpu", name), "CPU", "0", [CPU])
    assert str(refused.value) == (
        f"unknown Execution Accelerator '{name}' is requested: model 'm', this onnxruntime has CPUExecutionProvider"
    )
