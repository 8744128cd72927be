"""Tensors on a real GPU, through CuPy; skipped where either is missing. What needs neither is at the end."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from _tensorbus_app.shm import store
from _tensorbus_app.stub import gpu, outputs, placer
from _tensorbus_app.stub import tensor as module

AS_NUMPY = "Tensor is stored in GPU and cannot be converted to NumPy."


@pytest.fixture
def cupy() -> Any:
    if gpu.missing():
        pytest.skip(gpu.missing())
    return pytest.importorskip("cupy")


@pytest.fixture
def placed(tmp_path: Path) -> Any:
    """Sends tensors and returns what is in shared memory for them."""
    own = store.Store(str(tmp_path))
    reader = store.Reader(str(tmp_path))

    def place(*tensors: Any) -> Any:
        forms = [(each._name, each._datatype, each._shape, module.binary_form(each)) for each in tensors]
        references, _ = outputs.Outputs(placer.Placer(own)).place(forms, [])
        return [bytes(reader.view(*reference.place)) for reference in references]

    yield place
    own.close()


def test_a_tensor_on_a_gpu_stays_there(cupy: Any) -> None:
    theirs = cupy.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = pb_utils.Tensor.from_dlpack("A", theirs)
    assert (tensor.is_cpu(), tensor.__dlpack_device__(), tensor.shape()) == (False, (2, 0), [2, 3])
    with pytest.raises(pb_utils.TritonModelException) as caught:
        tensor.as_numpy()
    assert str(caught.value) == AS_NUMPY
    back = cupy.from_dlpack(tensor)
    assert back.data.ptr == theirs.data.ptr
    assert back.get().tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "float16", "int64", "float64"])
def test_outputs_on_a_gpu_are_copied_straight_into_shared_memory(cupy: Any, placed: Any, dtype: str) -> None:
    host = np.array([[0, 1, 2], [3, 4, 5]], dtype)
    on_gpu = pb_utils.Tensor.from_dlpack("A", cupy.asarray(host))
    beside = pb_utils.Tensor("B", host)
    empty = pb_utils.Tensor.from_dlpack("C", cupy.empty((0, 3), dtype))
    assert placed(beside, on_gpu, empty) == [host.tobytes(), host.tobytes(), b""]


def test_without_shared_memory_they_go_as_frames(cupy: Any) -> None:
    tensor = pb_utils.Tensor.from_dlpack("A", cupy.arange(3, dtype=np.int32))
    frames: List[bytes] = []
    outputs.Outputs(placer.Placer(None)).place([("A", "INT32", (3,), module.binary_form(tensor))], frames)
    assert frames == [np.arange(3, dtype=np.int32).tobytes()]


@pytest.mark.parametrize("datatype", ["FP32", "BOOL", "BF16"])
def test_an_input_is_put_on_a_gpu_and_lets_go_of_the_leased_memory(cupy: Any, placed: Any, datatype: str) -> None:
    leased = memoryview(bytearray(b"\x00\x01\x01\x00" * 4))
    count = {"FP32": 4, "BOOL": 16, "BF16": 8}[datatype]
    tensor, root = module.receive("A", datatype, (count,), leased)
    moved = module.on_gpu(tensor, 0)
    del root
    leased.release()
    assert (moved.is_cpu(), moved.__dlpack_device__()) == (False, (2, 0))
    assert placed(moved) == [b"\x00\x01\x01\x00" * 4]
    assert pb_utils.Tensor.from_dlpack("B", moved.to_dlpack())._datatype == datatype


def test_strings_stay_on_the_host(cupy: Any) -> None:
    tensor = module.receive("A", "BYTES", (1,), memoryview(bytearray(b"\x01\x00\x00\x00x")))[0]
    assert module.on_gpu(tensor, 0).as_numpy().tolist() == [b"x"]


def test_a_capsule_keeps_a_tensor_on_a_gpu_alive_by_one_reference(cupy: Any) -> None:
    tensor = pb_utils.Tensor.from_dlpack("A", cupy.arange(3))
    before = sys.getrefcount(tensor)
    capsule = tensor.to_dlpack()
    assert sys.getrefcount(tensor) == before + 1
    taken = cupy.from_dlpack(pb_utils.Tensor.from_dlpack("B", capsule))
    del capsule
    assert sys.getrefcount(tensor) == before + 1
    del taken
    gc.collect()
    assert sys.getrefcount(tensor) == before


def test_a_copy_is_made_for_whoever_asks_for_one_and_stays_on_the_gpu(cupy: Any) -> None:
    theirs = cupy.arange(3, dtype=np.float32)
    tensor = pb_utils.Tensor.from_dlpack("A", theirs)
    copied = pb_utils.Tensor.from_dlpack("B", tensor.__dlpack__(copy=True, dl_device=(2, 0)))
    theirs += 1
    assert cupy.from_dlpack(copied).get().tolist() == [0, 1, 2]
    with pytest.raises(BufferError):
        tensor.__dlpack__(dl_device=(1, 0))


def test_torch_shares_memory_on_the_gpu(cupy: Any) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("torch was built without CUDA")
    theirs = torch.arange(4, device="cuda", dtype=torch.bfloat16)
    tensor = pb_utils.Tensor.from_dlpack("A", theirs)
    assert (tensor._datatype, tensor.is_cpu()) == ("BF16", False)
    assert torch.from_dlpack(tensor).data_ptr() == theirs.data_ptr()


def test_a_model_whose_inputs_need_not_be_on_the_host_has_them_on_its_gpu(
    cupy: Any, load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "input_device", lambda args, config: 0)
    model = load(
        """
        class TritonPythonModel:
            def execute(self, requests):
                tensors = [pb_utils.get_input_tensor_by_name(request, "IN") for request in requests]
                assert not any(tensor.is_cpu() for tensor in tensors)
                return [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", one)]) for one in tensors]
        """
    )
    response = model.infer({"IN": np.arange(3, dtype=np.float32)})
    assert model.outputs(response)[0].data == np.arange(3, dtype=np.float32).tobytes()


NO = {"parameters": {"FORCE_CPU_ONLY_INPUT_TENSORS": {"string_value": "no"}}}
YES = {"parameters": {"FORCE_CPU_ONLY_INPUT_TENSORS": {"string_value": "yes"}}}
ON_GPU_1 = {"model_instance_kind": "GPU", "model_instance_device_id": "1"}


@pytest.mark.parametrize(
    "args, config, device",
    [
        (ON_GPU_1, NO, 1),
        (ON_GPU_1, YES, None),
        (ON_GPU_1, {}, None),
        ({"model_instance_kind": "CPU", "model_instance_device_id": "0"}, NO, None),
    ],
)
def test_only_an_instance_on_a_gpu_that_says_so_has_its_inputs_there(
    args: Dict[str, str], config: Dict[str, Any], device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "missing", lambda: "")
    assert gpu.input_device(args, json.loads(json.dumps(config))) == device


def test_without_a_gpu_inputs_stay_on_the_host_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "missing", lambda: "there is no GPU")
    assert gpu.input_device(ON_GPU_1, NO) is None
    assert "inputs stay in host memory, since there is no GPU" in capsys.readouterr().err
