"""DLPack capsules out and in, versioned (DLPack 1.0) and not; the consumer says which it understands.

NumPy (CuPy for a GPU) makes the capsules that go out, so that they are freed in C, whoever frees them in whatever
thread. As neither knows all datatypes, elements pass as unsigned integers whose type code is set right in the capsule's
struct. Capsules that come in are taken apart here: NumPy makes read-only arrays of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
from typing import Any, Optional, Tuple, Union

import numpy as np
from numpy.typing import NDArray

from . import gpu
from .numpy_types import DTYPE
from .triton_error import TritonModelException

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
_ON_GPU = (CUDA, CUDA_MANAGED)
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
_CODE = {name: code for (code, _), name in _DATATYPE.items()}
_READ_ONLY, _IS_COPIED = 1, 2  # flags
_VERSION = (1, 0)  # what we ask for

_python = ctypes.PyDLL(None)  # a handle of our own: ctypes.pythonapi's prototypes are shared with the user's code
_get_pointer = _python.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_is_valid = _python.PyCapsule_IsValid
_is_valid.restype = ctypes.c_int
_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_set_name = _python.PyCapsule_SetName
_set_name.restype = ctypes.c_int
_set_name.argtypes = [ctypes.py_object, ctypes.c_char_p]
_keep_for_ever = _python.Py_IncRef
_keep_for_ever.restype = None
_keep_for_ever.argtypes = [ctypes.py_object]
_Deleter = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


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
        ("strides", ctypes.POINTER(ctypes.c_int64)),  # NULL: C order
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    name, used_name = b"dltensor", b"used_dltensor"
    flags = 0
    _fields_ = [("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Versioned(ctypes.Structure):
    name, used_name = b"dltensor_versioned", b"used_dltensor_versioned"
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    ]


_AnyManaged = Union[_Managed, _Versioned]
for _kind in (_Versioned, _Managed):
    _keep_for_ever(_kind.used_name)  # a capsule does not copy its name and may outlive this module


class _Memory:
    """What NumPy wraps for an export: the elements' place, and a reference that keeps the tensor alive."""

    def __init__(self, owner: object, place: int, shape: Tuple[int, ...], typestr: str, read_only: bool) -> None:
        self.owner = owner
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": typestr, "data": (place, read_only)}


class _Borrowed:
    """A producer's memory: given back to it when the last user has let go."""

    def __init__(self, managed: _AnyManaged) -> None:
        self._managed = managed

    def __del__(self) -> None:
        if self._managed.deleter:
            _Deleter(self._managed.deleter)(ctypes.addressof(self._managed))


def export(
    owner: object,
    bits: Union[NDArray[Any], gpu.DeviceArray],
    shape: Tuple[int, ...],
    datatype: str,
    max_version: Optional[Tuple[int, int]] = None,
    copy: bool = False,
) -> Any:
    """A capsule over ``bits`` or a copy of them; ``owner`` lives until the capsule or its consumer has gone."""
    if copy:
        owner = bits = bits.copy()
    if isinstance(bits, gpu.DeviceArray):
        capsule = bits.capsule(owner, shape, _dtype(datatype).itemsize)
    else:
        capsule = _numpy_capsule(owner, bits, shape, max_version)
    managed = _managed_of(capsule)
    managed.tensor.code = _CODE[datatype]
    if copy and isinstance(managed, _Versioned):
        managed.flags |= _IS_COPIED
    return capsule


def _numpy_capsule(
    owner: object, bits: NDArray[Any], shape: Tuple[int, ...], max_version: Optional[Tuple[int, int]]
) -> Any:
    place, typestr = bits.ctypes.data, "<u{}".format(bits.itemsize)
    if max_version is not None and max_version[0] >= _VERSION[0]:
        memory: Any = _Memory(owner, place, shape, typestr, not bits.flags.writeable)
        with contextlib.suppress(TypeError):  # NumPy before 2.1 knows no versions
            return np.asarray(memory).__dlpack__(max_version=max_version)
    # Without a version nothing can be said to be read-only: it passes for writable, as in the original.
    memory = _Memory(owner, place, shape, typestr, False)
    return np.asarray(memory).__dlpack__()


def _dtype(datatype: str) -> np.dtype[Any]:
    return np.dtype(np.uint16) if datatype == "BF16" else DTYPE[datatype]


def import_(producer: object) -> Tuple[Union[NDArray[Any], gpu.DeviceArray], Tuple[int, ...], str]:
    """The producer's memory, its shape and datatype; BF16 comes as uint16. Raises TritonModelException."""
    capsule = _capsule_of(producer)
    managed = _managed_of(capsule)
    tensor = managed.tensor
    datatype = _checked(tensor)
    shape = tuple(tensor.shape[: tensor.ndim])
    _set_name(capsule, managed.used_name)
    borrowed = _Borrowed(managed)
    place = (tensor.data or 0) + tensor.byte_offset
    dtype = _dtype(datatype)
    if tensor.device_type in _ON_GPU:
        return gpu.borrow(borrowed, place, math.prod(shape) * dtype.itemsize, tensor.device_id), shape, datatype
    if 0 in shape:  # the place of nothing may be NULL
        return np.empty(shape, dtype), shape, datatype
    memory: Any = _Memory(borrowed, place, shape, dtype.str, bool(managed.flags & _READ_ONLY))
    return np.asarray(memory), shape, datatype


def _capsule_of(producer: Any) -> object:
    if type(producer).__name__ == "PyCapsule":
        return producer
    if not (hasattr(producer, "__dlpack__") and hasattr(producer, "__dlpack_device__")):
        raise _unsupported()
    device_type, _ = producer.__dlpack_device__()
    _check_device(int(device_type))
    stream = {"stream": gpu.STREAM} if device_type in _ON_GPU else {}
    try:
        return producer.__dlpack__(max_version=_VERSION, **stream)
    except TypeError:  # of before DLPack 1.0
        return producer.__dlpack__(**stream)


def _managed_of(capsule: object) -> _AnyManaged:
    for kind in (_Versioned, _Managed):
        if _is_valid(capsule, kind.name):  # a consumed one has another name
            managed = kind.from_address(_get_pointer(capsule, kind.name))
            if isinstance(managed, _Versioned) and managed.major != _VERSION[0]:
                break
            return managed
    raise _unsupported()


def _checked(tensor: _DLTensor) -> str:
    _check_device(tensor.device_type)
    datatype = _DATATYPE.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if datatype is None:
        raise TritonModelException("Dtype is invalid.")
    if not _is_contiguous(tensor):
        raise TritonModelException(NOT_CONTIGUOUS)
    return datatype


def _check_device(device_type: int) -> None:
    if device_type in _ON_GPU:
        missing = gpu.missing()
        if missing:
            text = "DLPack capsule passed pointer to memory allocated on GPU device, when GPU is not available"
            raise TritonModelException("{}: {}".format(text, missing))
    elif device_type not in (CPU, CUDA_HOST):
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
