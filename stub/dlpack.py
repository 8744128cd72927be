"""DLPack capsules out and in, CPU only (DLPack 0.8).

NumPy makes and consumes the capsules, so their life cycle is C code. What it does not know (BF16, BOOL before NumPy
1.25) passes as unsigned integers whose type code is set right in the capsule's struct:

    offset   0        8           12        16    20    21    22     24      32        40
             data *   device type device id ndim  code  bits  lanes  shape * strides * byte_offset
"""

from __future__ import annotations

import ctypes
from typing import Any, Tuple, cast

import numpy as np
from numpy.typing import NDArray

from .triton_error import TritonModelException

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
NOT_CONTIGUOUS = (
    "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported."
)
_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
_DATATYPE = {
    (_BOOL, 8): "BOOL",
    (_UINT, 8): "UINT8",
    (_UINT, 16): "UINT16",
    (_UINT, 32): "UINT32",
    (_UINT, 64): "UINT64",
    (_INT, 8): "INT8",
    (_INT, 16): "INT16",
    (_INT, 32): "INT32",
    (_INT, 64): "INT64",
    (_FLOAT, 16): "FP16",
    (_FLOAT, 32): "FP32",
    (_FLOAT, 64): "FP64",
    (_BFLOAT, 16): "BF16",
}
_CODE = {"BOOL": _BOOL, "BF16": _BFLOAT}  # those that pass as unsigned integers

_python = ctypes.PyDLL(None)  # a handle of our own: ctypes.pythonapi's prototypes are shared with the user's code
_get_pointer = _python.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_is_valid = _python.PyCapsule_IsValid
_is_valid.restype = ctypes.c_int
_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Memory:
    """What NumPy wraps for an export: the elements' place, and a reference that keeps the tensor alive."""

    def __init__(self, owner: object, bits: NDArray[Any], shape: Tuple[int, ...], typestr: str) -> None:
        self.owner = owner
        # Said to be writable even if the array is not: older NumPy exports no read-only memory, the original does.
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": typestr, "data": (bits.ctypes.data, False)}


class _Consumable:
    """A bare capsule with the methods that ``np.from_dlpack`` asks for."""

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_negotiation: Any) -> object:
        return self._capsule

    def __dlpack_device__(self) -> Tuple[int, int]:
        return CPU, 0


def export(owner: object, bits: NDArray[Any], shape: Tuple[int, ...], datatype: str) -> Any:
    """A capsule over ``bits``; ``owner`` lives until the capsule or its consumer has gone."""
    code = _CODE.get(datatype)
    typestr = bits.dtype.str if code is None else "<u{}".format(bits.itemsize)
    capsule = np.asarray(_Memory(owner, bits, shape, typestr)).__dlpack__()
    if code is not None:
        _struct(capsule).code = code
    return capsule


def import_(producer: object) -> Tuple[NDArray[Any], str]:
    """An array over the producer's memory and its datatype; BF16 comes as uint16. Raises TritonModelException."""
    capsule = _capsule_of(producer)
    tensor = _struct(capsule)
    datatype = _checked(tensor)
    if datatype in _CODE:
        tensor.code = _UINT
    array: NDArray[Any] = np.from_dlpack(cast("Any", _Consumable(capsule)))
    return (array.view(np.bool_) if datatype == "BOOL" else array), datatype


def _capsule_of(producer: object) -> object:
    if type(producer).__name__ != "PyCapsule":
        if not (hasattr(producer, "__dlpack__") and hasattr(producer, "__dlpack_device__")):
            raise _unsupported()
        device_type, _ = producer.__dlpack_device__()
        _check_device(int(device_type))
        producer = producer.__dlpack__()
    if not _is_valid(producer, b"dltensor"):  # a consumed one is called used_dltensor
        raise _unsupported()
    return producer


def _struct(capsule: object) -> _DLTensor:
    return _DLTensor.from_address(_get_pointer(capsule, b"dltensor"))


def _checked(tensor: _DLTensor) -> str:
    _check_device(tensor.device_type)
    datatype = _DATATYPE.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if datatype is None:
        raise TritonModelException("Dtype is invalid.")
    if not _is_contiguous(tensor):
        raise TritonModelException(NOT_CONTIGUOUS)
    return datatype


def _check_device(device_type: int) -> None:
    if device_type in (CUDA, CUDA_MANAGED):
        raise TritonModelException(
            "DLPack capsule passed pointer to memory allocated on GPU device, when GPU is not available"
        )
    if device_type not in (CPU, CUDA_HOST):
        raise TritonModelException("DLDevice type {} is not support by Python backend.".format(device_type))


def _is_contiguous(tensor: _DLTensor) -> bool:
    shape = tensor.shape[: tensor.ndim]
    if not tensor.strides or 0 in shape:
        return True
    expected = 1
    for size, stride in zip(reversed(shape), reversed(tensor.strides[: tensor.ndim])):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _unsupported() -> TritonModelException:
    return TritonModelException(
        "Provided tensor is not supported. Tensor must be a DLPack capsule "
        "        or have `__dlpack__` and `__dlpack_device__` attributes"
    )
