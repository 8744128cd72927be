"""Headers of requests that become parameters for the model, as ``--http-header-forward-pattern`` says, and gRPC's."""

from __future__ import annotations

import re
from collections.abc import Iterable

from protocol.errors import InvalidArgument
from protocol.messages import Parameters

Headers = Iterable[tuple[str, str | bytes]]

_RESERVED = frozenset(
    ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output")
)
_OF_THE_TRANSPORT = frozenset(("te", "content-type"))


class HeaderForwarding:
    """The pattern may match anywhere in a header's name, in any case."""

    def __init__(self, pattern: str) -> None:
        """Raises re.error."""
        self._matches = re.compile(pattern, re.IGNORECASE).search

    def added(self, parameters: Parameters, headers: Headers) -> Parameters:
        """The parameters and, as text by their names, the headers. Raises InvalidArgument for reserved names."""
        wanted = [(name, value) for name, value in headers if self._matches(name)]
        for name, _ in wanted:
            if name in _RESERVED or name.startswith("triton_"):
                raise InvalidArgument(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
        return {**parameters, **{name: _text(value) for name, value in wanted}}


def forwarding(pattern: str) -> HeaderForwarding | None:
    """None for no pattern: nothing is forwarded. Raises re.error."""
    return HeaderForwarding(pattern) if pattern else None


def metadata_of_client(metadata: Headers) -> Headers:
    """Of a gRPC call, without what belongs to its transport."""
    return [(name, v) for name, v in metadata if name not in _OF_THE_TRANSPORT and not name.startswith("grpc-")]


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")
