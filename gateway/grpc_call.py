"""The two kinds of calls, between the messages of one stream of HTTP/2 and the service. No socket, no HTTP/2.

A call is fed by ``receive``, with each message that its ``incoming`` has made of the stream, and by ``half_close``.
Both raise the error that is to end it. It is asked for what it has to send when it has called ``on_ready``:
``next`` until that gives None, then ``ended`` and ``error``. ``cancel`` ends it from outside, and is harmless later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.grpc_head import Head
from gateway.grpc_message import Buffer, Incoming, LargeMessage, Message, MessageMemory
from gateway.grpc_service import INFER, GrpcService
from protocol.errors import InternalError, ServingError

_CUT_OFF = "Unable to parse request"


class Call(Protocol):
    incoming: Incoming

    @property
    def ended(self) -> bool: ...

    @property
    def error(self) -> ServingError | None: ...

    def receive(self, message: Buffer) -> None: ...

    def half_close(self) -> None: ...

    def next(self) -> Message | None: ...

    def cancel(self) -> None: ...


class UnaryCall:
    """One message, one answer. What a client sends after its message is ignored."""

    __slots__ = (
        "_asked",
        "_cancel",
        "_message",
        "_metadata",
        "_method",
        "_on_ready",
        "_over",
        "_service",
        "error",
        "incoming",
    )

    def __init__(self, service: GrpcService, head: Head, memory: MessageMemory, on_ready: Callable[[], None]) -> None:
        self.incoming = Incoming(head.encoding, memory, service.refuse_large if head.path == INFER else None)
        self.error: ServingError | None = None
        self._service = service
        self._method = head.path
        self._metadata = head.metadata
        self._on_ready = on_ready
        self._asked = False
        self._over = False  # answered or cancelled
        self._message: Message | None = None
        self._cancel: Callable[[], None] | None = None

    @property
    def ended(self) -> bool:
        return self._over and self._message is None

    def receive(self, message: Buffer) -> None:
        if self._asked:
            return
        self._asked = True
        if self._method == INFER:
            self._cancel = self._service.infer(message, self._answer, self._metadata)
        else:
            self._service.unary(self._method, bytes(message), self._answer)

    def half_close(self) -> None:
        if not self._asked:
            raise InternalError(_CUT_OFF)

    def _answer(self, answer: Message | ServingError) -> None:
        if self._over:  # by cancelling a question that cannot be taken back
            return
        self._over = True
        self._cancel = None
        if isinstance(answer, ServingError):
            self.error = answer
        else:
            self._message = answer
        self._on_ready()

    def next(self) -> Message | None:
        message, self._message = self._message, None
        return message

    def cancel(self) -> None:
        self._over = True
        message = self.next()
        if isinstance(message, LargeMessage):
            message.release()
        if self._cancel is not None:
            self._cancel()
            self._cancel = None


class StreamCall:
    """ModelStreamInfer."""

    def __init__(self, service: GrpcService, head: Head, memory: MessageMemory, on_ready: Callable[[], None]) -> None:
        self._stream = stream = service.stream(head.metadata, on_ready)
        self.incoming = Incoming(head.encoding, memory)
        self.receive = stream.feed
        self.next = stream.next
        self.cancel = stream.cancel

    @property
    def ended(self) -> bool:
        return self._stream.ended

    @property
    def error(self) -> ServingError | None:
        return self._stream.error

    def half_close(self) -> None:
        if not self.incoming.is_idle:
            raise InternalError(_CUT_OFF)
        self._stream.half_close()
