"""What the soak finds fault with."""

from __future__ import annotations

from benchmarks.soak import Held, faults

EARLY = Held(segments=3, shm_bytes=1000, open_files=50, rss_bytes=1000, pending=0)


def test_a_server_that_holds_what_it_held_is_fine() -> None:
    assert faults(EARLY, EARLY._replace(rss_bytes=1050)) == []


def test_growth_is_named() -> None:
    late = EARLY._replace(segments=4, open_files=51, rss_bytes=1051)
    assert faults(EARLY, late) == [
        "segments grew from 3 to 4",
        "open files grew from 50 to 51",
        "memory grew from 1,000 to 1,051",
    ]


def test_pending_requests_are_a_fault() -> None:
    assert faults(EARLY, EARLY._replace(pending=2)) == ["2 requests are pending"]
