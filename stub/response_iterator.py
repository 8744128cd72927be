"""What a call with ``decoupled=True`` gives: an iterator over the responses as they come."""

from __future__ import annotations

from typing import List, Optional

from .bls import Call
from .response import InferenceResponse


class ResponseIterator:
    """Keeps what it has given: once the last response is out, iterating begins again with the first one. A loop that
    was left, the first or a later one, goes on where it was.

    For one thread or coroutine at a time; ``cancel`` may be called from any thread.
    """

    __module__ = "c_python_backend_utils"
    __slots__ = ("__weakref__", "_at", "_call", "_finished", "_responses")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._responses: List[InferenceResponse] = []
        self._at = 0
        self._finished = False

    def __iter__(self) -> ResponseIterator:
        if self._finished and self._at == len(self._responses):
            self._at = 0
        return self

    def __next__(self) -> InferenceResponse:
        """Blocks without the GIL."""
        if self._needs_more():
            self._call.wait(self._call.has_answer)
        response = self._take()
        if response is None:
            raise StopIteration("Iteration is done for the responses.")
        return response

    def __aiter__(self) -> ResponseIterator:
        return iter(self)

    async def __anext__(self) -> InferenceResponse:
        if self._needs_more():
            await self._call.arrival(self._call.has_answer)
        response = self._take()
        if response is None:
            raise StopAsyncIteration
        return response

    def cancel(self) -> None:
        """Tells the model called that the rest is not wanted. What has come, and what it still sends, can be taken."""
        self._call.cancel()

    def __del__(self) -> None:
        if hasattr(self, "_call"):
            self._call.drop()

    def _needs_more(self) -> bool:
        return self._at == len(self._responses) and not self._finished

    def _take(self) -> Optional[InferenceResponse]:
        if self._needs_more():
            response, self._finished = self._call.take()
            self._responses.append(response)
        if self._at == len(self._responses):
            return None
        self._at += 1
        return self._responses[self._at - 1]
