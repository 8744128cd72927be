"""Who a service is to the others of a scaled stack: its id, its shared memory, and the proof that others share that."""

from __future__ import annotations

import secrets

import structlog

from protocol.messages import Handle
from shm.errors import ShmFull
from shm.store import Block, Store

log = structlog.get_logger()

ID_LENGTH = 8  # hexadecimal digits
NONCE_NBYTES = 32
_NOWHERE = Handle("", 0, 0)


class Identity:
    """The id stands in the names of the segments of ``store``, by which it is known whose memory a handle means.
    Whoever finds ``nonce`` at ``probe`` shares that memory."""

    def __init__(self, directory: str, initial: int) -> None:
        """``initial``: the size of the first segment in bytes."""
        self.service = _new_id()
        self.store = Store(directory, initial=initial, tag=self.service)
        self.nonce = secrets.token_bytes(NONCE_NBYTES)
        self._shown = self.show(self.nonce)

    @property
    def probe(self) -> Handle:
        return handle_of(self._shown)

    def show(self, nonce: bytes) -> Block | None:
        """Where others can read it, if they share our memory; None if we have none."""
        try:
            block = self.store.allocate(len(nonce))
        except ShmFull as error:
            log.warning("shared memory is not used: tensors travel in messages, which is slower", cause=str(error))
            return None
        block.view[:] = nonce
        return block

    def renew(self) -> str:
        """Another id; "", and the old one stays, while anything but the probe lies in memory under it."""
        if self._shown is not None:
            self.store.free(self._shown)
        service = _new_id()
        taken = self.store.retag(service)
        if taken:
            self.service = service
        self._shown = self.show(self.nonce)
        return self.service if taken else ""


def handle_of(block: Block | None) -> Handle:
    return _NOWHERE if block is None else Handle(*block[:3])


def _new_id() -> str:
    return secrets.token_hex(ID_LENGTH // 2)
