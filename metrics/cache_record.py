"""The figures of the response cache: plain numbers that the broker writes and the exposition reads."""

from __future__ import annotations


class CacheRecord:
    """Of all models together, since the start of the server."""

    __slots__ = ("entries", "evictions", "hits", "insertion_ns", "lookup_ns", "misses", "size", "used")

    def __init__(self, size: int) -> None:
        self.size = size  # bytes
        self.used = 0  # bytes
        self.entries = 0
        self.hits = 0
        self.misses = 0
        self.evictions = 0
        self.lookup_ns = 0
        self.insertion_ns = 0
