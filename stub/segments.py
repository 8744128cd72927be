"""The shared memory of one stub: its own segments, its view of others', and the proof that the server shares it."""

from __future__ import annotations

from typing import Optional

from .placer import Placer
from .shared import messages, segment, shm_errors, store


class Segments:
    """``nonce`` is what lies at Load.probe, b"" where the server's memory is not ours; ``status`` is the segment whose
    header has the status word. Without either all tensors travel inline."""

    def __init__(self, load: messages.Load) -> None:
        self.reader = store.Reader(load.shm_directory)
        self.nonce = _read(self.reader, load.probe)
        self._own = store.Store(load.shm_directory, tag=load.tag)
        self.status = _first(self._own) if self.nonce else None
        self.placer = Placer(self._own if self.status else None, load.small_nbytes)

    def ready(self, asks_ready: bool = False) -> messages.Ready:
        return messages.Ready(messages.READY, self.nonce, self.status.name if self.status else "", asks_ready)

    def close(self) -> None:
        """Unlinks what is ours. Views stay valid."""
        self.reader.close()
        self._own.close()


def _read(reader: store.Reader, probe: messages.Handle) -> bytes:
    try:
        return bytes(reader.view(*probe))
    except shm_errors.BadHandle:
        return b""


def _first(own: store.Store) -> Optional[segment.Segment]:
    """None if there is no room even for that."""
    try:
        return own.first()
    except shm_errors.ShmFull:
        return None
