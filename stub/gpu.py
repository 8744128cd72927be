"""Tensors in the memory of an Nvidia GPU, by way of CuPy: an optional package of the model's interpreter.

It is imported when the first tensor on a GPU is met, so that a model that uses none pays nothing. Whoever makes a
DeviceArray waits until its elements are there; from then on they can be read in any stream.
"""

from __future__ import annotations

import functools
from typing import Any, Mapping, Optional, Tuple

import numpy as np
from numpy.typing import NDArray

from . import logger

STREAM = 1  # DLPack's number of CUDA's legacy default stream, the one that we wait for


@functools.cache
def _load() -> Tuple[Any, str]:
    """The cupy module, or why there is none."""
    try:
        import cupy
    except Exception as error:  # its own libraries may be missing, too
        return None, "cupy cannot be imported in the model's interpreter ({})".format(error)
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        return None, str(error)
    return (cupy, "") if count else (None, "there is no GPU")


def missing() -> str:
    """Why no tensor can be on a GPU here; "" if one can."""
    return _load()[1]


def input_device(args: Mapping[str, str], config: Mapping[str, Any]) -> Optional[int]:
    """The GPU on which the instance wants its inputs: its own, if the model says that they need not be on the host."""
    parameter = config.get("parameters", {}).get("FORCE_CPU_ONLY_INPUT_TENSORS", {})
    if parameter.get("string_value") != "no" or args.get("model_instance_kind") != "GPU":
        return None
    if missing():
        logger.write("W", __file__, 0, "inputs stay in host memory, since {}".format(missing()))
        return None
    return int(args["model_instance_device_id"])


class DeviceArray:
    """Bytes on one GPU. Like the buffers that other tensors are sent from, it has a length and can be copied out."""

    __slots__ = ("_bytes", "device")

    def __init__(self, flat: Any, device: int) -> None:
        """``flat`` is a contiguous cupy.ndarray of uint8."""
        self._bytes = flat
        self.device = device

    def __len__(self) -> int:
        return int(self._bytes.nbytes)

    def __bytes__(self) -> bytes:
        host = bytearray(len(self))
        self.copy_into(memoryview(host))
        return bytes(host)

    def copy_into(self, place: memoryview) -> None:
        """To ``place`` in host memory, of the same length."""
        if len(self):
            cupy = _load()[0]
            with cupy.cuda.Device(self.device):
                runtime = cupy.cuda.runtime
                host = np.frombuffer(place, np.uint8)
                runtime.memcpy(host.ctypes.data, self._bytes.data.ptr, len(self), runtime.memcpyDeviceToHost)

    def copy(self) -> DeviceArray:
        cupy = _load()[0]
        with cupy.cuda.Device(self.device):
            flat = self._bytes.copy()
            cupy.cuda.get_current_stream().synchronize()
        return DeviceArray(flat, self.device)

    def capsule(self, owner: object, shape: Tuple[int, ...], itemsize: int) -> Any:
        """A DLPack capsule of unsigned integers of ``itemsize`` bytes; ``owner`` lives as long as it does."""
        cupy = _load()[0]
        with cupy.cuda.Device(self.device):
            memory = cupy.cuda.UnownedMemory(self._bytes.data.ptr, len(self), (owner, self), self.device)
            pointer = cupy.cuda.MemoryPointer(memory, 0)
            return cupy.ndarray(shape, "u{}".format(itemsize), pointer).__dlpack__(stream=-1)  # no need to wait


def borrow(owner: object, place: int, nbytes: int, device: int) -> DeviceArray:
    """Memory of a producer that may still be writing to it, in the stream that it was asked for; ``owner`` keeps it."""
    cupy = _load()[0]
    with cupy.cuda.Device(device):
        cupy.cuda.Stream.null.synchronize()
        memory = cupy.cuda.UnownedMemory(place, nbytes, owner, device)
        return DeviceArray(cupy.ndarray((nbytes,), np.uint8, cupy.cuda.MemoryPointer(memory, 0)), device)


def upload(array: NDArray[Any], device: int) -> DeviceArray:
    """A copy of a C-ordered array in host memory."""
    cupy = _load()[0]
    with cupy.cuda.Device(device):
        flat = cupy.empty((array.nbytes,), np.uint8)
        if array.nbytes:
            runtime = cupy.cuda.runtime
            runtime.memcpy(flat.data.ptr, array.ctypes.data, array.nbytes, runtime.memcpyHostToDevice)
            cupy.cuda.Stream.null.synchronize()
        return DeviceArray(flat, device)
