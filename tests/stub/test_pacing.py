"""How far responses may be ahead of who reads them, with a bus of plain functions."""

from __future__ import annotations

from typing import Any, Callable, List, Optional

import pytest

from stub.closed import Closed
from stub.pacing import Pacing
from stub.shared import messages
from stub.triton_error import TritonModelException


class Bus:
    """``wait`` lets the next thing happen that the test has planned, and knows no other time."""

    is_ours = True

    def __init__(self) -> None:
        self.sent: List[messages.ToBroker] = []
        self.plans: List[Callable[[], None]] = []

    def send(self, message: messages.ToBroker) -> None:
        self.sent.append(message)

    def wait(self, done: Callable[[], Any], timeout_s: Optional[float] = None) -> bool:
        while not done():
            if not self.plans:
                return False
            self.plans.pop(0)()
        return True


@pytest.fixture
def bus() -> Bus:
    return Bus()


def response(request: int, lease: int, nbytes: int = 2000) -> messages.Response:
    place = messages.Handle("segment", 128, nbytes)
    return messages.Response(request, [messages.TensorRef("X", "UINT8", (nbytes,), place)], lease, final=False)


def test_responses_wait_once_a_client_has_too_much_unread(bus: Bus) -> None:
    pacing = Pacing(bus, set(), 4000)
    for lease in (1, 2):
        pacing.wait(7)
        pacing.sends(response(7, lease))
    assert not bus.sent
    bus.plans = [lambda: pacing.released([99]), lambda: pacing.released([1])]
    pacing.wait(7)
    assert bus.sent == [messages.Starved("J")] * 2, "asked again after what did not help"
    pacing.wait(7)
    assert len(bus.sent) == 2


def test_what_others_leave_unread_does_not_count(bus: Bus) -> None:
    pacing = Pacing(bus, set(), 4000)
    pacing.sends(response(7, 1, 9000))
    pacing.wait(8)
    pacing.sends(response(-8, 2, 9000))
    pacing.wait(-8)
    assert not bus.sent


def test_even_small_responses_count_for_something(bus: Bus) -> None:
    pacing = Pacing(bus, set(), 10 * 1024)
    for lease in range(1, 11):
        pacing.wait(7)
        pacing.sends(response(7, lease, 4))
    bus.plans = [lambda: pacing.released([1])]
    pacing.wait(7)
    assert bus.sent


def test_many_small_tensors_count_for_what_they_are(bus: Bus) -> None:
    pacing = Pacing(bus, set(), 10_000)
    small = [messages.TensorRef(str(number), "UINT8", (500,), bytes(500)) for number in range(20)]
    pacing.sends(messages.Response(7, small, 1, final=False))
    bus.plans = [lambda: pacing.released([1])]
    pacing.wait(7)
    assert bus.sent


def test_nobody_waits_for_a_client_that_has_gone(bus: Bus) -> None:
    cancelled = {7}
    pacing = Pacing(bus, cancelled, 100)
    pacing.sends(response(7, 1))
    pacing.wait(7)
    cancelled.clear()
    bus.plans = [lambda: cancelled.add(7)]
    pacing.wait(7)


def test_a_client_that_reads_nothing_for_long_is_given_up(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stub.pacing._LONGEST_S", 0.0)
    pacing = Pacing(bus, set(), 100)
    pacing.sends(response(7, 1))
    with pytest.raises(TritonModelException, match="The client has read none of 2000 bytes"):
        pacing.wait(7)


def test_a_model_that_goes_while_it_waits_is_told(bus: Bus) -> None:
    def close() -> None:
        raise Closed

    pacing = Pacing(bus, set(), 100)
    pacing.sends(response(7, 1))
    bus.plans = [close]
    with pytest.raises(TritonModelException, match="The model has been unloaded"):
        pacing.wait(7)


def test_a_paced_request_sends_as_many_responses_as_it_has_credit_for(bus: Bus) -> None:
    pacing = Pacing(bus, set(), 0)
    pacing.begin([(-7, 2)])
    for lease in (1, 2):
        pacing.wait(-7)
        pacing.sends(response(-7, lease))
    bus.plans = [lambda: pacing.add_credit(-8, 1), lambda: pacing.add_credit(-7, 1)]
    pacing.wait(-7)
    assert not bus.plans and bus.sent == [messages.Starved("J")]
    pacing.sends(response(-7, 3))
    pacing.ended(-7)
    pacing.wait(-7)


def test_without_a_bound_nobody_waits(bus: Bus) -> None:
    pacing = Pacing(bus, set(), 0)
    pacing.sends(response(7, 1, 1 << 40))
    pacing.wait(7)
    pacing.released([1])
