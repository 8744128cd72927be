"""What a stub host counts: plain ints, as in recorder.py."""

from __future__ import annotations


class StubHostRecord:
    __slots__ = ("broker_up", "deaths", "fetched_bytes", "from_stubs", "instances", "starts", "to_stubs")

    def __init__(self) -> None:
        self.instances = 0  # stub processes that run
        self.starts = 0
        self.deaths = 0
        self.broker_up = False
        self.from_stubs = 0  # messages
        self.to_stubs = 0
        self.fetched_bytes = 0  # of tensors, for readers that do not share our memory
