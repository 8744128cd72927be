"""The bound on the request tensors that a gateway holds, through the data plane."""

from __future__ import annotations

import pytest

from gateway.admission import Admission
from gateway.calls import InferCall, InputTensor
from metrics.pressure import Pressure
from protocol.errors import InvalidArgument, Unavailable
from tests.gateway.fake_bus import FakeBus, memory_in_use, signature

NBYTES = 4000


@pytest.fixture
def bus(tmp_path) -> FakeBus:
    bus = FakeBus(str(tmp_path))
    bus.signatures["m"] = signature("m")
    bus.hold = True
    return bus


def bounded(bus: FakeBus, max_nbytes: int) -> Pressure:
    pressure = Pressure()
    bus.dataplane.admission = Admission(pressure, max_nbytes)
    return pressure


def infer(bus: FakeBus, name: str = "IN", nbytes: int = NBYTES, request_id: str = "", model: str = "m") -> list:
    replies: list = []
    tensor = InputTensor(name, "INT32", [nbytes // 4], bytes(nbytes))
    bus.dataplane.infer(InferCall(model, -1, [tensor], request_id), replies.append)
    return replies


def test_requests_are_refused_once_their_tensors_exceed_the_bound_until_others_are_answered(bus: FakeBus) -> None:
    pressure = bounded(bus, 2 * NBYTES)
    infer(bus)
    infer(bus)
    with pytest.raises(Unavailable) as refused:
        infer(bus, request_id="seven")
    assert str(refused.value) == (
        "[request id: seven] Exceeds maximum queue size: the server holds 8000 bytes of request tensors and takes none "
        "of 4000 bytes for model 'm' beyond --max-queued-bytes=8000"
    )
    assert (pressure.nbytes, pressure.refused_for_bytes, pressure.refused_for_requests) == (2 * NBYTES, 1, 0)
    bus.held.pop().echo()
    assert pressure.nbytes == NBYTES
    infer(bus)


def test_a_model_for_which_nothing_is_held_is_not_shut_out_by_others(bus: FakeBus) -> None:
    bus.signatures["other"] = signature("other")
    pressure = bounded(bus, NBYTES)
    infer(bus)
    infer(bus, model="other")
    for model in ("m", "other"):
        with pytest.raises(Unavailable, match=f"for model '{model}'"):
            infer(bus, model=model)
    assert pressure.nbytes == 2 * NBYTES


def test_a_request_larger_than_the_bound_is_served_when_nothing_else_is_held(bus: FakeBus) -> None:
    pressure = bounded(bus, 100)
    infer(bus)
    assert pressure.nbytes == NBYTES
    with pytest.raises(Unavailable):
        infer(bus, nbytes=4)
    bus.held.pop().echo()
    infer(bus)


def test_bytes_are_held_until_the_model_lets_go_of_the_inputs(bus: FakeBus) -> None:
    pressure = bounded(bus, 0)
    infer(bus)
    entry = bus.held.pop()
    retained = entry.sink
    entry.answer(error=InvalidArgument("no"))
    assert pressure.nbytes == 0
    retained.on_inputs_released()
    assert pressure.nbytes == 0, "once only"


def test_nothing_is_held_for_a_request_that_is_no_good(bus: FakeBus) -> None:
    pressure = bounded(bus, 100)
    with pytest.raises(InvalidArgument):
        infer(bus, "OTHER")
    assert pressure.nbytes == 0 and memory_in_use(bus.gateway_store) == 0


def test_a_large_body_is_refused_beforehand_when_too_many_requests_wait(bus: FakeBus) -> None:
    bus.full = True
    with pytest.raises(Unavailable, match="too many for m"):
        bus.dataplane.refuse_large("m", 1, 1)
