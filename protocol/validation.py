"""Checks of a request against a model's signature, in Triton's order and words: a client's, and another model's.

Inputs are looked at last to first, as Triton's hash map does for up to a handful of them: where several are at
fault, the same one is named.
"""

from __future__ import annotations

from itertools import chain
from math import prod
from struct import Struct
from typing import Callable, Iterable, List, NamedTuple, NoReturn, Optional, Sequence, Sized, Tuple

from .datatypes import ITEMSIZE
from .errors import InvalidArgument
from .signature import Signature, TensorSpec

Shape = Tuple[int, ...]
Fail = Callable[[str], NoReturn]
# Name, datatype, shape, bytes in binary form (or any object that has only their length), and what the caller likes.
CheckedInput = Tuple[str, str, List[int], Sized, object]

INT64_MAX = (1 << 63) - 1
_LENGTH = Struct("<I")
_BATCHING_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try "
    "setting max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


def shape_text(shape: Iterable[int]) -> str:
    """``[1,16]``."""
    return "[" + ",".join(map(str, shape)) + "]"


def element_count(name: str, shape: Iterable[int]) -> int:
    """Number of elements; InvalidArgument past what 64 bits hold, and for one dimension that does not fit."""
    count = 1
    for dim in shape:
        count *= dim
        if count > INT64_MAX or dim > INT64_MAX:
            raise InvalidArgument(
                f"invalid shape for input '{name}': shape {shape_text(shape)} causes total element count to exceed "
                f"maximum size of {INT64_MAX}"
            )
    return count


def byte_size(name: str, count: int, itemsize: int) -> int:
    if count * itemsize > INT64_MAX:
        raise InvalidArgument(
            f"byte size overflow for input '{name}': element count ({count}) * data type size ({itemsize}) exceeds "
            f"maximum allowed size ({INT64_MAX})"
        )
    return count * itemsize


class _Expected(NamedTuple):
    """An input's specification, ready for comparison."""

    datatype: str
    dims: List[int]
    itemsize: int  # 0 for BYTES
    fixed_nbytes: int  # of one batch entry; -1 with variable dims or BYTES
    shape: Optional[Shape]  # for the model, where it needs no thought: fixed dims, no batching, no reshape
    entry: Shape  # of one batch entry, for the model
    spec: TensorSpec


class Checker:
    """The checks of one model version, made once."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self._inputs = {spec.name: self._expected(spec) for spec in signature.inputs}
        self._outputs = frozenset(spec.name for spec in signature.outputs)
        self.inputs = {spec.name: spec for spec in signature.inputs}
        self.outputs = {spec.name: spec for spec in signature.outputs}
        self.reshaped = {spec.name: spec for spec in signature.outputs if spec.reshape is not None}
        self._required = sum(not spec.optional for spec in signature.inputs)
        self._max_batch_size = signature.max_batch_size

    def _expected(self, spec: TensorSpec) -> _Expected:
        itemsize = ITEMSIZE[spec.datatype] or 0
        fixed = itemsize > 0 and -1 not in spec.dims
        plain = fixed and self.signature.max_batch_size == 0 and spec.reshape is None
        nbytes = prod(spec.dims) * itemsize if fixed else -1
        entry = spec.dims if spec.reshape is None else spec.reshape
        return _Expected(spec.datatype, list(spec.dims), itemsize, nbytes, spec.dims if plain else None, entry, spec)

    def check(self, request_id: str, inputs: Sequence[CheckedInput], outputs: Sequence[str]) -> list[Shape]:
        """The shapes for the model, one per input: batch dimension included, reshape applied. Raises
        InvalidArgument."""
        expected, count = self._inputs, len(inputs)
        if count != len(expected) or not self._outputs.issuperset(outputs):
            return self._check_all(request_id, inputs, outputs)
        if count > 1 and len({item[0] for item in inputs}) != count:
            return self._check_all(request_id, inputs, outputs)
        shapes: list[Shape] = []
        batch_size = -1
        for name, datatype, shape, data, _ in inputs:
            known = expected.get(name)
            if known is None:
                break
            wanted, dims, _, nbytes, whole, entry, _ = known
            if nbytes < 0 or datatype != wanted:
                break
            if whole is not None:
                if shape != dims or len(data) != nbytes:
                    break
                shapes.append(whole)
                continue
            if shape[1:] != dims or not 0 < shape[0] <= self._max_batch_size:
                break
            if batch_size < 0:
                batch_size = shape[0]
            if shape[0] != batch_size or len(data) != batch_size * nbytes:
                break
            shapes.append((batch_size, *entry))
        else:
            return shapes  # all dimensions are as configured: there is no more to look at
        return self._check_all(request_id, inputs, outputs)

    def _check_all(self, request_id: str, inputs: Sequence[CheckedInput], outputs: Sequence[str]) -> list[Shape]:
        def fail(text: str) -> NoReturn:
            raise InvalidArgument(f"[request id: {request_id or '<id_unknown>'}] {text}")

        self._check_names(inputs, outputs, fail)
        batch_size = self._check_batch(inputs, fail) if self._max_batch_size > 0 else None
        shapes = [self._check_input(item, batch_size, fail) for item in reversed(inputs)]
        shapes.reverse()
        return shapes

    def _check_names(self, inputs: Sequence[CheckedInput], outputs: Sequence[str], fail: Fail) -> None:
        model = self.signature.model
        names: dict[str, None] = {}  # an ordered set
        for item in inputs:
            if item[0] in names:
                fail(f"input '{item[0]}' already exists in request")
            names[item[0]] = None
        for output in outputs:
            if output not in self._outputs:
                raise InvalidArgument(f"unexpected inference output '{output}' for model '{model}'")  # no id: as Triton
        total = len(self._inputs)
        if not self._required <= len(names) <= total:
            count = str(total) if self._required == total else f"number of inputs between {self._required} and {total}"
            noun = " inputs" if self._required == total else ""
            absent = [spec.name for spec in self.signature.inputs if not spec.optional and spec.name not in names]
            missing = _quoted(absent) if absent else "]"  # so does Triton
            fail(
                f"expected {count}{noun} but got {len(names)} inputs for model '{model}'. Got input(s) "
                f"{_quoted(reversed(names))}, but missing required input(s) {missing}. Please provide all "
                "required input(s)."
            )
        for name in reversed(names):
            if name not in self._inputs:
                raise InvalidArgument(f"unexpected inference input '{name}' for model '{model}'")

    def _check_batch(self, inputs: Sequence[CheckedInput], fail: Fail) -> int:
        """The request's batch size, the first dimension of every input."""
        model = self.signature.model
        batch_size: int | None = None
        for name, _, shape, _, _ in reversed(inputs):
            if not shape:
                fail(f"input '{name}' has no shape but model requires batch dimension for '{model}'")
            if batch_size is None:
                batch_size = shape[0]
            elif shape[0] != batch_size:
                fail(f"input '{name}' batch size does not match other inputs for '{model}'")
        if batch_size is not None and batch_size > self._max_batch_size:
            fail(f"inference request batch-size must be <= {self._max_batch_size} for '{model}'")
        return batch_size or 0

    def _check_input(self, item: CheckedInput, batch_size: int | None, fail: Fail) -> Shape:
        name, datatype, shape, data, _ = item
        expected = self._inputs[name]
        model = self.signature.model
        if datatype != expected.datatype:
            fail(
                f"inference input '{name}' data-type is '{datatype}', but model '{model}' expects '{expected.datatype}'"
            )
        entry = shape if batch_size is None else shape[1:]
        if not expected.spec.ragged:
            self._check_shape(name, shape, entry, expected, fail)
        count = prod(entry) * (batch_size or 1)  # no batch of zero: Triton counts it as one
        if expected.itemsize == 0:
            if isinstance(data, (bytes, memoryview)):
                self._check_strings(name, data, count, fail)
        elif len(data) != count * expected.itemsize:
            fail(
                f"input byte size mismatch for input '{name}' for model '{model}'. "
                f"Expected {count * expected.itemsize}, got {len(data)}"
            )
        if expected.spec.reshape is not None:
            entry = _reshaped(expected.spec.reshape, expected.dims, entry)
        return tuple(entry) if batch_size is None else (batch_size, *entry)

    def _check_shape(self, name: str, shape: list[int], entry: list[int], expected: _Expected, fail: Fail) -> None:
        if entry == expected.dims and -1 not in entry:
            return
        model = self.signature.model
        if len(entry) == len(expected.dims):
            if -1 in entry:
                fail(
                    f"All input dimensions should be specified for input '{name}' for model '{model}', got "
                    f"{shape_text(shape)}"
                )
            if all(dim in (-1, given) for dim, given in zip(expected.dims, entry)):
                return
        batching = self._max_batch_size > 0
        wanted = shape_text(chain((-1,), expected.dims) if batching else expected.dims)
        fail(
            f"unexpected shape for input '{name}' for model '{model}'. Expected {wanted}, got {shape_text(shape)}. "
            + (_BATCHING_NOTE if batching else "")
        )

    def _check_strings(self, name: str, data: bytes | memoryview, count: int, fail: Fail) -> None:
        """BYTES: exactly ``count`` elements, each a little-endian uint32 length and so many bytes."""
        where = f"for inference input '{name}' for model '{self.signature.model}'"
        position, end, found = 0, len(data), 0
        unpack = _LENGTH.unpack_from
        while position < end:
            left = end - position
            if left < 4:
                fail(
                    f"incomplete string length indicator {where}, expecting 4 bytes but only {left} bytes available. "
                    "Please make sure the string length indicator is in one buffer."
                )
            length: int = unpack(data, position)[0]
            position += 4
            if found >= count:
                fail(f"unexpected number of string elements {found + 1} {where}, expecting {count}")
            if length > end - position:
                raise InvalidArgument(
                    f"incomplete string data for inference input '{name}', expecting string of length {length} but "
                    f"only {end - position} bytes available"
                )
            position += length
            found += 1
        if found != count:
            fail(f"expected {count} string elements {where}, got {found}")


def _quoted(names: Iterable[str]) -> str:
    return "[" + ",".join(f"'{name}'" for name in names) + "]"


def _reshaped(target: Shape, dims: list[int], given: list[int]) -> list[int]:
    """The target with its wildcards taken over from the given dims, left to right."""
    variable = iter([size for dim, size in zip(dims, given) if dim == -1])
    return [next(variable) if dim == -1 else dim for dim in target]


def client_shape(spec: TensorSpec, batching: bool, shape: Shape) -> Shape:
    """An output's shape as the client sees it: the reshape undone. One that is not as configured stays as it is."""
    reshape = spec.reshape
    lead, rest = (shape[:1], shape[1:]) if batching else ((), shape)
    if reshape is None or len(rest) != len(reshape) or any(want not in (-1, got) for want, got in zip(reshape, rest)):
        return shape
    return (*lead, *_reshaped(spec.dims, list(reshape), list(rest)))
