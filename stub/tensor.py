"""``pb_utils.Tensor``: a named array of a received request or of a response to be.

Who owns the bytes. A received tensor is a view of the sender's memory: writable, zero copy, leased until the last array
over it has gone (stub/retained.py, stub/borrowed.py). As long as the model has not looked at it, it can be lent to
others as it lies there; bytes that others look at too are copied when the model looks. A tensor made by the model
aliases the model's array until it is sent, except BYTES, which are encoded at once.
"""

from __future__ import annotations

import math
from typing import Any, List, NamedTuple, NoReturn, Optional, Tuple, Union

import numpy as np
from numpy.typing import NDArray

from . import dlpack, gpu
from .arguments import incompatible, text_argument
from .bytes_tensor import join_elements, object_array, split_elements
from .numpy_types import DATATYPE, DTYPE
from .shared import datatypes, messages, store
from .triton_error import TritonModelException

_LENT_NBYTES = 64 << 10  # what is smaller is copied into a response: it costs less than a second lease
_SMALL_NBYTES = 4096  # up to here a copy costs less than a flat memoryview (50 to 180 ns)
_BYTE = np.dtype(np.uint8)
_BF16_BITS = np.dtype(np.uint16)  # NumPy has no BF16; its bits travel as these


class Place(NamedTuple):
    """Where a received tensor lies whose elements the model has not seen yet. Holding ``root`` keeps them there."""

    handle: messages.Handle
    root: NDArray[Any]
    shared: bool  # others look at them, too
    borrowed: bool  # of another model, so that the lease is ours to end


class Tensor:
    """Immutable but for the elements of its array."""

    __module__ = "c_python_backend_utils"
    # _data: the binary form where it is not the array's own memory (BYTES, BF16, on a GPU), else None.
    # _array: what as_numpy returns; None for BYTES not decoded yet, for BF16 and on a GPU.
    # _place: None once the model has seen the elements, and for all that it has made itself.
    # _handle: of the memory that _array shows, if it is that of a request; it may lie beside that of another one.
    __slots__ = ("__weakref__", "_array", "_data", "_datatype", "_handle", "_name", "_place", "_shape")

    _array: Optional[NDArray[Any]]
    _data: Union[NDArray[Any], gpu.DeviceArray, bytes, None]
    _datatype: str
    _handle: Optional[messages.Handle]
    _name: str
    _place: Optional[Place]
    _shape: Tuple[int, ...]

    def __init__(self, name: str, numpy_array: NDArray[Any], /) -> None:
        if not isinstance(numpy_array, np.ndarray):
            raise incompatible("__init__", "Tensor(arg0: str, arg1: numpy.ndarray)", name, numpy_array)
        self._name = name if type(name) is str and name and name.isascii() else _checked_name("__init__", name)
        self._place = self._handle = None
        datatype = DATATYPE.get(numpy_array.dtype)
        if datatype is None:
            self._encode(numpy_array)
            return
        if not numpy_array.flags.c_contiguous:
            numpy_array = np.ascontiguousarray(numpy_array)
        self._array = numpy_array
        self._data = None
        self._datatype = datatype
        self._shape = numpy_array.shape

    def _encode(self, array: NDArray[Any]) -> None:
        if array.dtype.kind not in "OS":
            raise TritonModelException("NumPy dtype is not supported.")
        try:
            self._data = join_elements(array)
        except UnicodeEncodeError as error:
            raise TritonModelException(
                "Tensor '{}' holds text that is no Unicode: {}".format(self._name, error)
            ) from None
        self._array = array
        self._datatype = "BYTES"
        self._shape = array.shape

    def name(self) -> str:
        return self._name

    def shape(self) -> List[int]:
        return list(self._shape)

    def triton_dtype(self) -> int:
        """The datatype's number, 1 (BOOL) to 14 (BF16)."""
        return datatypes.BY_NAME[self._datatype].number

    def is_cpu(self) -> bool:
        return not isinstance(self._data, gpu.DeviceArray)

    def as_numpy(self) -> NDArray[Any]:
        """The same array at each call. A received tensor's is writable and stays valid as long as anybody holds it."""
        if self._place is not None:
            _show(self)
        array = self._array
        if array is None:
            array = self._array = self._decode()
        return array

    def _decode(self) -> NDArray[Any]:
        if isinstance(self._data, gpu.DeviceArray):
            raise TritonModelException("Tensor is stored in GPU and cannot be converted to NumPy.")
        if self._datatype == "BF16":
            raise TritonModelException(
                "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
            )
        assert self._data is not None
        encoded = self._data if isinstance(self._data, bytes) else self._data.tobytes()
        try:
            array = object_array(split_elements(encoded), self._shape)
        except ValueError as error:
            raise TritonModelException("Tensor '{}': {}".format(self._name, error)) from None
        self._data = encoded  # lets go of the leased memory
        return array

    def to_dlpack(self) -> Any:
        """A capsule for one consumer; it keeps this tensor alive."""
        return dlpack.export(self, _bits(self), self._shape, self._datatype)

    def __dlpack__(
        self,
        stream: Any = None,
        *,
        max_version: Optional[Tuple[int, int]] = None,
        dl_device: Optional[Tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any:
        """``stream`` is ignored: the data is always ready."""
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError("tensor '{}' is not on DLPack device {}".format(self._name, tuple(dl_device)))
        return dlpack.export(self, _bits(self), self._shape, self._datatype, max_version, bool(copy))

    def __dlpack_device__(self) -> Tuple[int, int]:
        return (dlpack.CUDA, self._data.device) if isinstance(self._data, gpu.DeviceArray) else (dlpack.CPU, 0)

    @staticmethod
    def from_dlpack(name: str, tensor: object, /) -> Tensor:
        """A tensor over the memory of a capsule, or of an object with ``__dlpack__`` and ``__dlpack_device__``."""
        name = _checked_name("from_dlpack", name)
        if isinstance(tensor, np.ndarray):
            return _of_numpy(name, tensor)
        bits, shape, datatype = dlpack.import_(tensor)
        made = Tensor.__new__(Tensor)
        made._name = name
        made._datatype = datatype
        made._place = made._handle = None
        made._shape = shape
        if datatype == "BF16" or isinstance(bits, gpu.DeviceArray):
            made._array, made._data = None, bits
        else:
            made._array, made._data = bits, None
        return made

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle 'c_python_backend_utils.Tensor' object")


def _checked_name(function: str, name: Any) -> str:
    name = text_argument(function, name)
    if not name:
        raise TritonModelException("Tensor name cannot be an empty string.")
    return str(name)


def _of_numpy(name: str, array: NDArray[Any]) -> Tensor:
    if array.dtype not in DATATYPE:
        raise TritonModelException("Dtype is invalid.")
    if not array.flags.c_contiguous:
        raise TritonModelException(dlpack.NOT_CONTIGUOUS)
    return Tensor(name, array)


def receive_bytes(name: str, datatype: str, shape: Tuple[int, ...], data: bytes) -> Tensor:
    """A tensor over a copy of what came with the message, since models may write to their inputs.

    ``ndarray`` and not ``frombuffer``, in half the time: nobody else knows the copy, which so never moves."""
    dtype = DTYPE.get(datatype)
    if dtype is None or not data:
        return receive(name, datatype, shape, data)[0]
    array: NDArray[Any] = np.ndarray(shape, dtype, bytearray(data))
    if array.nbytes != len(data):
        raise ValueError("{} bytes where {} are due".format(len(data), array.nbytes))
    tensor = Tensor.__new__(Tensor)
    tensor._name = name
    tensor._datatype = datatype
    tensor._shape = shape
    tensor._array = array
    tensor._data = tensor._place = tensor._handle = None
    return tensor


def receive(
    name: str,
    datatype: str,
    shape: Tuple[int, ...],
    data: Union[memoryview, bytes],
    place: messages.TensorPlace = -1,
    shared: bool = False,
    borrowed: bool = False,
) -> Tuple[Tensor, Optional[NDArray[Any]]]:
    """A tensor over ``data`` (1-D, format "B") and the root array: whoever uses that memory holds the root. What came
    with the message is copied, and has none.

    ``frombuffer``, not ``ndarray(buffer=...)``: it holds an export of the buffer, so the mapping cannot be closed under
    it. Every view of a view, memoryview and DLPack export of the array keeps the root alive.
    """
    tensor = Tensor.__new__(Tensor)
    tensor._name = name
    tensor._datatype = datatype
    tensor._shape = shape
    dtype = DTYPE.get(datatype)
    nbytes = len(data)
    if not nbytes:
        tensor._place = tensor._handle = None
        tensor._array = None if datatype == "BF16" else np.empty(shape, dtype or object)
        tensor._data = np.empty(0, _BF16_BITS) if datatype == "BF16" else b"" if dtype is None else None
        return tensor, None
    # Models may write to their inputs.
    memory = bytearray(data) if isinstance(data, bytes) or data.readonly else data
    if dtype is None:
        root: NDArray[Any] = np.frombuffer(memory, _BF16_BITS if datatype == "BF16" else _BYTE)
        tensor._array = None
        tensor._data = root
    else:
        root = np.frombuffer(memory, dtype)
        tensor._array = root if len(shape) == 1 else root.reshape(shape)
        tensor._data = None
    if not isinstance(place, messages.Handle):
        tensor._place = tensor._handle = None
        if isinstance(place, bytes):
            return tensor, None
    else:
        tensor._handle = None if shared or borrowed else place
        # A large one is seen through a private mapping.
        tensor._place = messages.new(Place, (place, root, shared and nbytes < store.PRIVATE_NBYTES, borrowed))
    return tensor, root


def own(name: str, datatype: str, array: NDArray[Any]) -> Tensor:
    """Over an array of ours, C-ordered and of just that datatype."""
    tensor = Tensor.__new__(Tensor)
    tensor._name = name
    tensor._datatype = datatype
    tensor._shape = array.shape
    tensor._array = array
    tensor._data = tensor._place = tensor._handle = None
    return tensor


def lend(tensor: Tensor) -> Optional[Place]:
    """For others to look at, if the model has not yet."""
    place = tensor._place
    if place is not None and not place.shared:
        place = tensor._place = place._replace(shared=True)
    return place


def _show(tensor: Tensor) -> None:
    """The model is about to see the elements, and may write to them."""
    place, tensor._place = tensor._place, None
    if place is not None and place.shared and tensor._datatype != "BYTES":  # those are decoded, a copy as it is
        tensor._handle = None
        if tensor._array is not None:
            tensor._array = tensor._array.copy()
        else:
            assert isinstance(tensor._data, np.ndarray)
            tensor._data = tensor._data.copy()


def on_gpu(tensor: Tensor, device: int) -> Tensor:
    """The tensor with its elements on a GPU; the leased memory is let go. BYTES stay where they are."""
    if tensor._datatype != "BYTES":
        tensor._place = tensor._handle = None  # what the model will see is a copy
        bits = _bits(tensor)
        assert isinstance(bits, np.ndarray)
        tensor._data, tensor._array = gpu.upload(bits, device), None
    return tensor


def _memory(tensor: Tensor) -> NDArray[Any]:
    """The array that the tensor aliases.

    Only ``ndarray.resize(refcheck=False)`` changes its size. A view of our own would be no help: it would go on
    pointing to the old memory.
    """
    array = tensor._array
    assert array is not None
    if array.nbytes != math.prod(tensor._shape) * DTYPE[tensor._datatype].itemsize:
        raise TritonModelException(
            "the array of tensor '{}' was resized after the tensor had been made".format(tensor._name)
        )
    return array


def _bits(tensor: Tensor) -> Union[NDArray[Any], gpu.DeviceArray]:
    """What a DLPack capsule of the tensor shows. Raises TritonModelException."""
    if tensor._datatype == "BYTES":
        raise TritonModelException("DLPack does not have support for string tensors.")
    if tensor._place is not None:
        _show(tensor)
    data = _memory(tensor) if tensor._data is None else tensor._data
    assert not isinstance(data, bytes)
    return data


def binary_form(tensor: Tensor) -> Union[bytes, memoryview, gpu.DeviceArray]:
    """The bytes to send, as they are now: 1-D, format "B". A memoryview is of the model's array: copy it soon.

    Raises TritonModelException.
    """
    data = tensor._data
    if data is None:
        array = tensor._array
        if type(array) is not np.ndarray or array.shape != tensor._shape:  # quicker to ask than its size
            array = _memory(tensor)
    elif isinstance(data, np.ndarray):
        array = data
    else:
        return data
    if array.nbytes <= _SMALL_NBYTES:
        return array.tobytes()
    return array.data.cast("B")


def outgoing(tensor: Tensor) -> Union[bytes, memoryview, gpu.DeviceArray, Place]:
    """For a response: what another model has answered goes on as it lies there, all else as ``binary_form``.

    A request's inputs do not: their memory would be used again if this process died before the response was read.
    """
    place = tensor._place
    if place is not None and place.borrowed and place.handle.nbytes >= _LENT_NBYTES:
        return lend(tensor) or binary_form(tensor)
    return binary_form(tensor)
