"""When a stub is told that its outputs have been read."""

from __future__ import annotations

import pytest

from broker.events import OutputsRead, StubSaid
from protocol.messages import STARVED, Execute, Starved


@pytest.fixture
def bench(make_bench):
    bench = make_bench()
    bench.load(decoupled=True)
    bench.bring_up()
    return bench


def released(bench) -> list[int]:
    return [lease for message in bench.sent(bench.only(), Execute) for lease in message.released]


def starve(bench) -> None:
    bench.tell(StubSaid(bench.only(), Starved(STARVED), ()))
    bench.turn()


def read(bench, lease: int) -> None:
    bench.tell(OutputsRead(bench.only(), lease))
    bench.turn()


def test_it_is_told_with_the_next_work_or_after_a_while(bench) -> None:
    read(bench, 1)
    assert released(bench) == []
    bench.submit()
    bench.turn()
    assert released(bench) == [1]
    read(bench, 2)
    bench.sleep(0.2)
    assert released(bench) == [1, 2]


def test_one_that_waits_for_it_is_told_at_once_once(bench) -> None:
    starve(bench)
    assert released(bench) == []
    read(bench, 1)
    assert released(bench) == [1]
    read(bench, 2)
    assert released(bench) == [1]


def test_what_was_read_before_it_asks_is_told_then(bench) -> None:
    read(bench, 1)
    read(bench, 2)
    starve(bench)
    assert released(bench) == [1, 2]


def test_its_successor_does_not_wait(bench) -> None:
    starve(bench)
    bench.die(bench.only())
    bench.bring_up()
    read(bench, 1)
    assert released(bench) == []
