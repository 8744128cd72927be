"""What a gateway counts of its way to the broker: plain ints, as in recorder.py."""

from __future__ import annotations


class GatewayRecord:
    """A request went by ``shm`` if its tensors stayed where they lay, by ``frames`` if they were sent; so did the bytes
    of its inputs and outputs."""

    __slots__ = (
        "broker_up",
        "bytes_by_frames",
        "bytes_by_shm",
        "pending",
        "rejoins",
        "requests_by_frames",
        "requests_by_shm",
    )

    def __init__(self) -> None:
        self.requests_by_shm = 0
        self.requests_by_frames = 0
        self.bytes_by_shm = 0
        self.bytes_by_frames = 0
        self.broker_up = False
        self.pending = 0  # requests without a final response
        self.rejoins = 0  # how often the broker was joined again
