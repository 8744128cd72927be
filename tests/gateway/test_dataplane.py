"""The data plane over a broker in memory; shared memory is real."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from gateway.calls import InferCall, InputTensor, Reply
from gateway.dataplane import DataPlane
from gateway.tensors import prefixed
from protocol.errors import InvalidArgument, NotFound, Unavailable
from protocol.messages import Handle, Response, TensorRef
from protocol.signature import Signature
from shm.store import Store
from tests.gateway.fake_bus import PLAIN, REMOTE, REMOTE_FRAMES, FakeBus, Submitted, memory_in_use, signature

ONES = struct.pack("<16f", *[1.0] * 16)
TWOS = struct.pack("<16f", *[2.0] * 16)


def add_sub_call(**changes: object) -> InferCall:
    inputs = [InputTensor("INPUT0", "FP32", [16], ONES), InputTensor("INPUT1", "FP32", [16], TWOS)]
    return InferCall("add_sub", -1, inputs, **changes)  # type: ignore[arg-type]


def replies(bus: FakeBus, *calls: InferCall, then: Callable[[DataPlane, int], None] | None = None) -> list[Reply]:
    """Run the calls on a loop of their own until all is answered."""
    found: list[Reply] = []

    async def run() -> None:
        for call in calls:
            id = bus.dataplane.infer(call, found.append)
            assert not found  # never synchronously
            if then is not None:
                then(bus.dataplane, id)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(run())
    return found


def test_outputs_are_views_until_the_reply_is_released(bus: FakeBus) -> None:
    [reply] = replies(bus, add_sub_call(request_id="7"))
    assert [(item.name, item.datatype, item.shape) for item in reply.outputs] == [
        ("OUTPUT0", "FP32", (16,)),
        ("OUTPUT1", "FP32", (16,)),
    ]
    assert struct.unpack("<16f", reply.outputs[0].data) == (3.0,) * 16
    assert reply.final and reply.request_id == "7" and reply.signature.model == "add_sub"
    assert memory_in_use(bus.stub_store) > 0
    reply.release()
    reply.release()
    assert memory_in_use(bus.stub_store) == memory_in_use(bus.gateway_store) == 0


def test_inputs_lie_aligned_in_one_block(bus: FakeBus) -> None:
    call = InferCall("id_string", -1, [InputTensor("INPUT0", "BYTES", [1], b"\1\0\0\0x")])
    replies(bus, call, add_sub_call())
    for request in (entry.request for entry in bus.submitted):
        assert all(isinstance(ref.place, Handle) and ref.place.offset % 64 == 0 for ref in request.inputs)
    assert len({ref.place.segment for ref in bus.submitted[1].request.inputs if isinstance(ref.place, Handle)}) == 1


def test_inputs_of_requests_that_may_make_a_batch_lie_side_by_side(bus: FakeBus) -> None:
    inputs = {"A": ("FP32", (-1,)), "B": ("INT8", (-1,))}
    bus.add(signature("batching", inputs, max_batch_size=8)._replace(batching=True))
    bus.add(signature("alone", inputs, max_batch_size=8))
    bus.hold = True

    def call(model: str, mark: int, length: int) -> InferCall:
        a = InputTensor("A", "FP32", [1, length], bytes([mark]) * 4 * length)
        return InferCall(model, -1, [a, InputTensor("B", "INT8", [1, 64], bytes([mark]) * 64)])

    def offsets(name: str) -> list[int]:
        places = [ref.place for each in bus.submitted for ref in each.request.inputs if ref.name == name]
        assert len({place.segment for place in places if isinstance(place, Handle)}) == 1
        return [place.offset for place in places if isinstance(place, Handle)]

    replies(bus, *[call("batching", mark, 16384) for mark in range(4)])
    assert [b - a for a, b in pairwise(offsets("A"))] == [4 * 16384] * 3
    assert [b - a for a, b in pairwise(offsets("B"))] == [64] * 3
    for mark, each in enumerate(bus.submitted):
        for ref in each.request.inputs:
            assert isinstance(ref.place, Handle)
            assert set(bus.stub_reader.view(*ref.place)) == {mark}
    bus.submitted.clear()
    replies(bus, *[call("alone", mark, 16384) for mark in range(2)], *[call("batching", 0, 512) for _ in range(2)])
    assert all(b - a != 64 for a, b in pairwise(offsets("B")))

    for each in bus.held:
        each.sink.on_response(Response(each.request.id, []), "stub", [])
    bus.dataplane.trim()
    bus.dataplane.trim()
    assert memory_in_use(bus.gateway_store) == 0


def test_a_request_carries_what_the_client_asked(bus: FakeBus) -> None:
    replies(
        bus,
        add_sub_call(
            request_id="a",
            outputs=["OUTPUT1"],
            parameters={"x": 1.5},
            correlation_id="s",
            flags=3,
            priority=2,
            timeout_us=9,
        ),
    )
    request = bus.submitted[0].request
    assert (request.version, request.request_id, request.outputs, request.parameters) == (
        1,
        "a",
        ["OUTPUT1"],
        {"x": 1.5},
    )
    assert (request.correlation_id, request.flags, request.priority, request.timeout_us) == ("s", 3, 2, 9)


def test_inputs_that_lie_in_the_calls_block_are_not_copied(bus: FakeBus) -> None:
    block = bus.gateway_store.allocate(128)
    block.view[:64], block.view[64:] = ONES, TWOS
    inputs = [
        InputTensor("INPUT0", "FP32", [16], block.view[:64], 0),
        InputTensor("INPUT1", "FP32", [16], block.view[64:], 64),
    ]
    [reply] = replies(bus, InferCall("add_sub", -1, inputs, block=block))
    assert struct.unpack("<16f", reply.outputs[1].data) == (-1.0,) * 16
    assert [ref.place for ref in bus.submitted[0].request.inputs] == [
        Handle(block.segment, block.offset, 64),
        Handle(block.segment, block.offset + 64, 64),
    ]
    assert memory_in_use(bus.gateway_store) == 0


def test_without_shared_memory_inputs_travel_as_frames(bus: FakeBus, tmp_path: Path) -> None:
    bus.dataplane.store = Store(str(tmp_path), limit=0)
    [reply] = replies(bus, add_sub_call())
    assert [ref.place for ref in bus.submitted[0].request.inputs] == [0, 1]
    assert struct.unpack("<16f", reply.outputs[0].data) == (3.0,) * 16


@pytest.mark.parametrize("way", [PLAIN, REMOTE, REMOTE_FRAMES])
def test_small_inputs_go_with_the_message_and_take_no_memory(tmp_path: Path, way: str) -> None:
    """In whatever buffer they come, which its front uses again; where memory is not shared, too."""
    bus = FakeBus(str(tmp_path), way, small_nbytes=128)
    bus.add(signature("two", {"A": ("FP32", (-1,)), "B": ("UINT8", (-1,))}))
    bus.hold = True
    buffer = bytearray(ONES)
    small, large = InputTensor("A", "FP32", [16], memoryview(buffer)), bytes(range(128))

    async def run() -> None:
        bus.dataplane.infer(InferCall("two", -1, [small, InputTensor("B", "UINT8", [127], large[1:])]), print)
        assert memory_in_use(bus.gateway_store) == 0
        bus.dataplane.infer(InferCall("two", -1, [small, InputTensor("B", "UINT8", [128], large)]), print)
        assert memory_in_use(bus.gateway_store) == 128
        buffer[:] = TWOS
        while len(bus.held) < 2:
            await asyncio.sleep(0)

    asyncio.run(run())
    first, second = bus.held
    assert [ref.place for ref in first.request.inputs] == [ONES, large[1:]]
    assert second.request.inputs[0].place == ONES and not isinstance(second.request.inputs[1].place, bytes)
    assert second.inputs()[1][3] == large
    bus.close()


def test_outputs_may_come_with_the_message(bus: FakeBus) -> None:
    bus.hold = True
    found = replies(bus, add_sub_call())
    [entry] = bus.held
    entry.sink.on_response(Response(entry.request.id, [TensorRef("OUTPUT0", "FP32", (16,), TWOS)]), "stub", [])
    assert found[0].outputs[0].data == TWOS


def test_outputs_may_come_as_frames(bus: FakeBus) -> None:
    bus.hold = True
    found = replies(bus, add_sub_call())
    [entry] = bus.held
    entry.sink.on_response(Response(entry.request.id, [TensorRef("OUTPUT0", "FP32", (16,), 0)]), "stub", [TWOS])
    assert found[0].outputs[0].data == TWOS


def test_a_handle_that_leads_nowhere_becomes_an_error_without_the_segments_name(bus: FakeBus) -> None:
    bus.hold = True
    found = replies(bus, add_sub_call())
    [entry] = bus.held
    bad = TensorRef("OUTPUT0", "FP32", (16,), Handle("tensorbus-1-" + "0" * 32, 128, 64))
    entry.sink.on_response(Response(entry.request.id, [bad]), "stub", [])
    assert str(found[0].error) == "failed to read the outputs of model 'add_sub'"
    assert not found[0].outputs


def test_an_error_of_the_model_is_the_replys(bus: FakeBus) -> None:
    bus.models["add_sub"] = partial(Submitted.answer, error=Unavailable("Stub process 'x' is not healthy."))
    [reply] = replies(bus, add_sub_call())
    assert isinstance(reply.error, Unavailable) and str(reply.error) == "Stub process 'x' is not healthy."
    assert memory_in_use(bus.gateway_store) == 0


def test_a_refused_call_gives_its_block_back(bus: FakeBus) -> None:
    block = bus.gateway_store.allocate(64)
    with pytest.raises(InvalidArgument):
        bus.dataplane.infer(
            InferCall("add_sub", -1, [InputTensor("X", "FP32", [16], block.view, 0)], block=block), print
        )
    block = bus.gateway_store.allocate(64)
    with pytest.raises(NotFound):
        bus.dataplane.infer(InferCall("nope", -1, [], block=block), print)
    assert memory_in_use(bus.gateway_store) == 0


def test_a_cancelled_call_gets_no_reply_and_keeps_its_memory_until_the_broker_answers(bus: FakeBus) -> None:
    bus.hold = True
    found = replies(bus, add_sub_call(), then=lambda dataplane, id: dataplane.cancel(id))
    assert bus.held[0].cancelled
    assert memory_in_use(bus.gateway_store) > 0
    bus.held[0].run()
    assert not found
    assert memory_in_use(bus.gateway_store) == memory_in_use(bus.stub_store) == 0


def test_retained_inputs_are_freed_when_the_model_lets_go(bus: FakeBus) -> None:
    bus.hold = True
    found = replies(bus, add_sub_call())
    [entry] = bus.held
    entry.sink.on_response(Response(entry.request.id, [], retained=True), "stub", [])
    assert found[0].final and memory_in_use(bus.gateway_store) > 0
    entry.sink.on_inputs_released()
    assert memory_in_use(bus.gateway_store) == 0


def test_inputs_stay_until_the_final_response(bus: FakeBus) -> None:
    bus.hold = True
    found = replies(bus, add_sub_call())
    [entry] = bus.held
    entry.sink.on_response(Response(entry.request.id, [], final=False), "stub", [])
    assert memory_in_use(bus.gateway_store) > 0 and not found[0].final
    entry.sink.on_response(Response(entry.request.id, []), "stub", [])
    assert memory_in_use(bus.gateway_store) == 0 and not bus.dataplane.pending


@pytest.mark.parametrize(("nbytes", "times"), [(64 << 20, 0), ((64 << 20) + 1, 2)])
def test_large_calls_are_counted_both_ways(bus: FakeBus, nbytes: int, times: int) -> None:
    [reply] = replies(bus, InferCall("id_uint8", -1, [InputTensor("INPUT0", "UINT8", [nbytes], bytes(nbytes))]))
    reply.release()
    assert bus.dataplane.large_calls == times


def test_a_reloaded_model_is_checked_against_its_new_signature(bus: FakeBus) -> None:
    old = bus.dataplane.checker(bus.signature("add_sub", -1))
    assert bus.dataplane.checker(bus.signature("add_sub", -1)) is old
    changed = bus.signature("add_sub", -1)._replace(max_batch_size=4)
    assert bus.dataplane.checker(changed).signature is changed


def test_metadata_of_a_batching_model_has_a_leading_dimension(bus: FakeBus) -> None:
    metadata = bus.dataplane.model_metadata("add_sub_b", -1)
    assert (metadata.name, metadata.versions, metadata.platform) == ("add_sub_b", ["1"], "python")
    assert metadata.inputs[0] == ("INPUT0", "FP32", (-1, 16))
    assert bus.dataplane.model_metadata("add_sub", 1).outputs[1] == ("OUTPUT1", "FP32", (16,))


# --- classification -----------------------------------------------------------------------------------------------

FOUR = struct.pack("<4i", 1, 2, 4, 3)


def classified(bus: FakeBus, model: Signature, classes: dict[str, int], shape: list[int]) -> Reply:
    bus.add(model, Submitted.echo)
    datatype = model.inputs[0].datatype
    inputs = [InputTensor("IN", datatype, shape, FOUR)]
    [reply] = replies(bus, InferCall(model.model, -1, inputs, classes=classes))
    reply.release()
    return reply


def test_an_output_can_be_classified_with_its_labels(bus: FakeBus) -> None:
    model = signature("m")._replace(labels={"OUT": ("cat", "dog", "", "cow")})
    assert classified(bus, model, {"OUT": 2}, [4]).outputs == [
        ("OUT", "BYTES", (2,), prefixed([b"4:2", b"3:3:cow"])),
    ]


def test_each_entry_of_a_batch_is_classified_by_itself(bus: FakeBus) -> None:
    reply = classified(bus, signature("m", max_batch_size=2), {"OUT": 9}, [2, 2])
    assert reply.outputs == [("OUT", "BYTES", (2, 2), prefixed([b"2:1", b"1:0", b"4:0", b"3:1"]))]


def test_only_what_was_asked_is_classified(bus: FakeBus) -> None:
    reply = classified(bus, signature("m"), {"OTHER": 1}, [4])
    assert [(output.name, output.datatype) for output in reply.outputs] == [("OUT", "INT32")]


def test_an_output_that_has_no_classes_is_an_error_of_the_reply(bus: FakeBus) -> None:
    reply = classified(bus, signature("m", {"IN": ("BOOL", (16,))}), {"OUT": 1}, [16])
    assert isinstance(reply.error, InvalidArgument) and not reply.outputs and reply.final
    assert memory_in_use(bus.stub_store) == 0
