"""Request and response parameters that a model sets: a dict of str to bool, int or str."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

from .arguments import text_argument
from .shared import messages
from .triton_error import TritonModelException

_INT64 = 1 << 63


def checked_parameters(parameters: Optional[Mapping[str, Any]]) -> Dict[str, messages.ParameterValue]:
    """A copy, so that later changes by the model go unseen. Raises TritonModelException."""
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise TritonModelException("Expect dict, got {}".format(type(parameters)))
    return {_key(key): _value(value) for key, value in parameters.items()}


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise TritonModelException("Expect parameters keys to have type str, found type {}".format(type(key)))
    return text_argument("parameters", key)


def _value(value: object) -> messages.ParameterValue:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return text_argument("parameters", value)
    if not isinstance(value, int):
        raise TritonModelException(
            "Expect parameters values to have type bool/int/str, found type {}".format(type(value))
        )
    if not -_INT64 <= value < _INT64:  # the original's server dies of it
        raise TritonModelException("Expect parameters values of type int to fit 64 bits, found {}".format(value))
    return int(value)
