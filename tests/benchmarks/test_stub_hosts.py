"""A broker with more stub hosts than a test would start: simulated ones, over real sockets."""

from __future__ import annotations

import asyncio

from benchmarks.stub_hosts import WINDOWS, measure

SLACK = 3.0  # a busy machine


def test_twenty_hosts_come_serve_are_lost_and_go() -> None:
    """``measure`` waits for each of that, with a deadline."""
    one = asyncio.run(measure(1, models=2, requests=300, rounds=3, idle_s=0.5))
    many = asyncio.run(measure(20, models=2, requests=300, rounds=3, idle_s=0.5))
    assert (one.failed, many.failed) == (0, 0)
    assert many.busy_hosts > 10
    assert many.open_files - one.open_files == 19  # a connection each
    for window in WINDOWS:
        assert many.request_us[window] < SLACK * max(one.request_us[window], 100)
