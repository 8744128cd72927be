"""How much work the whole server holds, and what it has turned away: plain ints, as in recorder.py."""

from __future__ import annotations


class Pressure:
    """``queued`` are the requests of all models that wait for an instance, calls between models and the steps of
    ensembles among them; ``nbytes`` the request tensors of clients that the server holds, those on their way in too."""

    __slots__ = ("nbytes", "queued", "refused_for_bytes", "refused_for_requests")

    def __init__(self) -> None:
        self.queued = 0
        self.nbytes = 0
        self.refused_for_requests = 0  # so far
        self.refused_for_bytes = 0
