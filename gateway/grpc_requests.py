"""A ModelInferRequest to an InferCall (KServe v2 with Triton's additions)."""

from __future__ import annotations

from typing import Any, NamedTuple

from gateway.calls import InferCall, InputTensor
from gateway.grpc_tensors import data_beside_raw, requested_output
from gateway.grpc_wire import ParsedRequest
from protocol.errors import InvalidArgument
from protocol.messages import SEQUENCE_END, SEQUENCE_START, Parameters, new
from protocol.signature import Signature

EMPTY_FINAL = "triton_enable_empty_final_response"
UINT64_MASK = 2**64 - 1


class DecodedParameters(NamedTuple):
    """Request parameters, the reserved ones told apart. ``empty_final``: the client opted in to empty final
    responses."""

    free: Parameters
    correlation_id: int | str
    flags: int
    priority: int
    timeout_us: int
    empty_final: bool


def decode_call(parsed: ParsedRequest, signature: Signature, parameters: DecodedParameters) -> InferCall:
    """The call; its inputs view the request's bytes. Raises InvalidArgument, NotFound or Unsupported."""
    (message, described, outputs), raw = parsed
    model = message.model_name
    classes: dict[str, int] = {}
    next_raw = iter(raw)
    inputs: list[InputTensor] = []
    for name, datatype, shape, tensor in described:
        data: bytes | memoryview | None = None if tensor is None else data_beside_raw(tensor, model, raw)
        if data is None:
            data = next(next_raw, None)
        if data is None:
            raise InvalidArgument(f"unable to find data for input tensor '{name}' for model '{model}' in request.")
        inputs.append(new(InputTensor, (name, datatype, shape, data, -1)))
    if outputs is None:
        outputs = [requested_output(output, classes) for output in message.outputs]
    return InferCall(
        model,
        signature.version,
        inputs,
        message.id,
        outputs,
        parameters.free,
        parameters.correlation_id,
        parameters.flags,
        parameters.priority,
        parameters.timeout_us,
        None,
        signature,
        classes,
    )


def decode_parameters(message: Any) -> DecodedParameters:
    """Raises InvalidArgument where a value has the wrong type or a key is reserved."""
    if not len(message.parameters):
        return DecodedParameters({}, 0, 0, 0, 0, False)
    free: Parameters = {}
    correlation_id: int | str = 0
    flags = priority = timeout_us = 0
    empty_final = False
    for name, parameter in message.parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        if name == "sequence_id":
            value = _expect(name, parameter, kind, "int64_param", "string_param")
            correlation_id = value if isinstance(value, str) else value & UINT64_MASK
        elif name == "sequence_start":
            flags |= SEQUENCE_START if _expect(name, parameter, kind, "bool_param") else 0
        elif name == "sequence_end":
            flags |= SEQUENCE_END if _expect(name, parameter, kind, "bool_param") else 0
        elif name == "priority":
            priority = _expect(name, parameter, kind, "int64_param", "uint64_param")
            if priority < 0:
                raise InvalidArgument("invalid value for 'priority', expected value >= 0.")
        elif name == "timeout":
            timeout_us = _expect(name, parameter, kind, "int64_param") & UINT64_MASK
        elif name == EMPTY_FINAL:
            empty_final = _expect(name, parameter, kind, "bool_param")
        elif name.startswith("triton_"):
            raise InvalidArgument(
                "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
                f"starting with 'triton_' are allowed: {EMPTY_FINAL}"
            )
        elif kind is None or kind == "uint64_param":
            raise InvalidArgument(
                f"invalid value type for '{name}' parameter, expected int64_param, bool_param, or string_param."
            )
        else:
            free[name] = getattr(parameter, kind)
    return DecodedParameters(free, correlation_id, flags, priority, timeout_us, empty_final)


def _expect(name: str, parameter: Any, kind: str | None, *kinds: str) -> Any:
    if kind not in kinds:
        raise InvalidArgument(f"invalid value type for '{name}' parameter, expected {' or '.join(kinds)}.")
    return getattr(parameter, kind)
