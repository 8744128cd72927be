"""Calls to other models over real stores; the broker and the models called are a few lines here."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import deque
from pathlib import Path
from typing import Any, Callable, Deque, Iterator, List, Tuple

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from _tensorbus_app.shm.store import PRIVATE_NBYTES, Reader, Store
from _tensorbus_app.stub import bls, calls, open_calls
from _tensorbus_app.stub import tensor as tensors
from _tensorbus_app.stub.placer import Placer
from _tensorbus_app.stub.response_iterator import ResponseIterator
from _tensorbus_app.stub.shared import messages

Frames = List[memoryview]


class Bus:
    """Carries the calls to ``target``, whose answers come when somebody waits."""

    def __init__(self) -> None:
        self.handlers: Any = {}
        self.is_broken = False
        self.sent: List[Any] = []
        self.due: Deque[Tuple[Any, Frames]] = deque()
        self.target: Callable[[messages.Call, Any], None] = lambda call, frames: None

    def send(self, message: Any, frames: Any = ()) -> None:
        self.sent.append(message)
        if isinstance(message, messages.Call):
            self.target(message, frames)

    def wait(self, done: Callable[[], Any], timeout_s: Any = None) -> bool:
        while not done():
            self.deliver()
        return True

    def deliver(self) -> None:
        message, frames = self.due.popleft()
        self.handlers[type(message)](message, frames)

    def read_in_background(self) -> None:
        pass

    def nudge(self) -> None:
        pass


class Broker:
    """The other side: it reads inputs and has memory of its own for outputs."""

    def __init__(self, directory: str) -> None:
        self.bus = Bus()
        self.store = Store(directory)  # of the model called
        self.own = Store(directory)  # the stub's
        self.placer = Placer(self.own)
        self.reader = Reader(directory)
        self.calls = open_calls.OpenCalls(self.bus)
        self.lease = 0

    def answer(self, call: int, *outputs: Any, final: bool = True, **fields: Any) -> None:
        references = [self.output(name, array) for name, array in outputs]
        self.lease += 1
        response = messages.Response(-1, references, self.lease if outputs else 0, final=final, **fields)
        self.bus.due.append((messages.Answered(messages.ANSWERED, call, response, "target"), []))

    def output(self, name: str, array: Any, shared: bool = False) -> messages.TensorRef:
        block = self.store.allocate(array.nbytes)
        block.view[:] = array.tobytes()
        return messages.TensorRef(name, "FP32", array.shape, messages.Handle(*block[:3]), shared)

    def echo(self, call: messages.Call, frames: Any) -> None:
        self.answer(call.call, ("OUT", self.input(call, frames)))

    def input(self, call: messages.Call, frames: Any = ()) -> Any:
        (reference,) = call.request.inputs
        place = reference.place
        data = frames[place] if isinstance(place, int) else self.reader.view(*place)
        return np.frombuffer(data, np.float32).reshape(reference.shape)

    @property
    def call(self) -> messages.Call:
        (call,) = [message for message in self.bus.sent if isinstance(message, messages.Call)]
        return call

    @property
    def read(self) -> List[Tuple[str, int]]:
        return self.calls.take_read()

    def free_bytes(self) -> int:
        self.placer.trim(0.0)
        return sum(region.arena.free_bytes for region in self.own._regions)


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    broker = Broker(str(tmp_path))
    connection = calls.Connection()
    connection.calls, connection.serving = broker.calls, bytearray(b"\1")
    monkeypatch.setattr(calls, "_connection", connection)
    monkeypatch.setattr(bls, "_memory", None)
    bls.serve(broker.placer, broker.reader)
    broker.own.first()
    yield broker
    gc.collect()
    broker.store.close()
    broker.own.close()
    broker.reader.close()


def ask(*inputs: Any, **fields: Any) -> Any:
    return pb_utils.InferenceRequest(model_name="m", inputs=list(inputs), requested_output_names=[], **fields)


def tensor(*numbers: float) -> Any:
    return pb_utils.Tensor("IN", np.array(numbers, np.float32))


def received(broker: Broker, array: Any, shared: bool = False) -> Any:
    """A tensor as a request's input, or an answer's output, is one."""
    name, datatype, shape, place, _ = broker.output("IN", array)
    return tensors.receive(name, datatype, shape, broker.reader.view_shared(*place), place, shared)[0]


def test_the_response_has_the_outputs_of_the_model_called(broker: Broker) -> None:
    broker.bus.target = broker.echo
    response = ask(tensor(1, 2)).exec()
    (output,) = response.output_tensors()
    assert (output.name(), output.as_numpy().tolist(), response.has_error()) == ("OUT", [1.0, 2.0], False)


def test_a_call_has_the_fields_of_its_request(broker: Broker) -> None:
    broker.bus.target = broker.echo
    request = ask(tensor(1), request_id="r", correlation_id="s", flags=1, timeout=2**40, parameters={"a": True})
    request.set_flags(2)
    request.exec()
    made = broker.call.request
    assert (made.id, made.model, made.version, made.request_id, made.correlation_id) == (0, "m", -1, "r", "s")
    assert (made.flags, made.timeout_us, made.parameters, made.outputs) == (2, 2**40, {"a": True}, [])
    assert not broker.call.decoupled


def test_a_call_says_which_batch_waits_for_it(broker: Broker) -> None:
    broker.bus.target = broker.echo
    token = calls.executing.set(calls.Executing(7, True))
    try:
        ask(tensor(1)).exec()
    finally:
        calls.executing.reset(token)
    assert (broker.call.batch, broker.call.waits) == (7, True)


@pytest.mark.parametrize(("kind", "code"), [(2, pb_utils.TritonError.NOT_FOUND), (99, pb_utils.TritonError.UNKNOWN)])
def test_an_error_is_returned_with_its_code(broker: Broker, kind: int, code: Any) -> None:
    broker.bus.target = lambda call, frames: broker.answer(call.call, error=(kind, "no"))
    response = ask(tensor(1)).exec()
    assert (response.error().message(), response.error().code()) == ("no", code)
    assert (response.output_tensors(), response.parameters()) == ([], "")


def test_outputs_that_cannot_be_read_are_an_error(broker: Broker) -> None:
    def target(call: messages.Call, frames: Any) -> None:
        broker.answer(call.call, ("OUT", np.ones(1, np.float32)))
        broker.store.close()

    broker.bus.target = target
    response = ask(tensor(1)).exec()
    assert response.error().message() == "Model m - Error when running inference: its outputs cannot be read"
    assert broker.read == [("target", 1)]


def test_a_final_flag_behind_the_only_response_is_waited_for(broker: Broker) -> None:
    def target(call: messages.Call, frames: Any) -> None:
        broker.answer(call.call, ("OUT", np.ones(1, np.float32)), final=False)
        broker.answer(call.call)

    broker.bus.target = target
    assert ask().exec().output_tensors()[0].as_numpy().tolist() == [1.0]
    assert not broker.bus.due


# --- memory of inputs


def test_tensors_of_the_model_s_own_are_copied_once_into_one_block(broker: Broker) -> None:
    broker.bus.target = broker.echo
    free = broker.free_bytes()
    broker.bus.target = lambda call, frames: broker.answer(call.call)
    ask(tensor(1, 2), pb_utils.Tensor("B", np.array([b"x\0"], object))).exec()
    first, second = broker.call.request.inputs
    assert first.place.segment == second.place.segment == broker.own.first().name
    assert (second.place.offset - first.place.offset, first.shared, second.datatype) == (64, False, "BYTES")
    assert bytes(broker.reader.view(*second.place)) == b"\2\0\0\0x\0"
    assert broker.free_bytes() == free


def test_the_inputs_stay_until_the_model_called_lets_go_of_them(broker: Broker) -> None:
    broker.bus.target = lambda call, frames: broker.answer(call.call, retained=True)
    free = broker.free_bytes()
    ask(tensor(1, 2)).exec()
    assert broker.free_bytes() < free
    broker.bus.due.append((messages.Returned(messages.RETURNED, [broker.call.call]), []))
    broker.bus.deliver()
    assert broker.free_bytes() == free


def test_without_shared_memory_the_inputs_are_frames(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bls, "_memory", bls._Memory(Placer(None), broker.reader))
    broker.bus.target = broker.echo
    assert ask(tensor(1, 2)).exec().output_tensors()[0].as_numpy().tolist() == [1.0, 2.0]


def test_a_received_tensor_goes_on_as_it_lies_there(broker: Broker) -> None:
    broker.bus.target = broker.echo
    given = received(broker, np.ones(3, np.float32))
    place = given._place.handle
    assert ask(given).exec().output_tensors()[0].as_numpy().tolist() == [1.0, 1.0, 1.0]
    (reference,) = broker.call.request.inputs
    assert (reference.place, reference.shared) == (place, True)


@pytest.mark.parametrize("count", [3, PRIVATE_NBYTES // 4])
def test_what_others_look_at_is_a_copy_for_whoever_looks_next(broker: Broker, count: int) -> None:
    broker.bus.target = lambda call, frames: broker.answer(call.call)
    given = received(broker, np.zeros(count, np.float32))
    ask(given).exec()
    given.as_numpy()[:] = 5
    assert given.as_numpy()[-1] == 5
    assert not broker.input(broker.call).any()


@pytest.mark.parametrize("shared", [False, True])
def test_what_the_model_has_seen_goes_on_as_a_copy(broker: Broker, shared: bool) -> None:
    broker.bus.target = broker.echo
    given = received(broker, np.zeros(3, np.float32), shared)
    given.as_numpy()[:] = 5
    assert ask(given).exec().output_tensors()[0].as_numpy().tolist() == [5.0] * 3
    assert broker.call.request.inputs[0].place.segment == broker.own.first().name


def test_a_received_tensor_s_memory_is_held_as_long_as_the_call(broker: Broker) -> None:
    given = received(broker, np.zeros(3, np.float32))
    root = weakref.ref(given._place.root)
    call = bls.Call(ask(given)._message, [given], False)
    del given
    gc.collect()
    assert root() is not None
    broker.answer(broker.call.call)
    broker.bus.deliver()
    assert call.is_complete()
    assert root() is None


# --- memory of outputs


def test_the_lease_of_outputs_ends_with_the_last_array_over_them(broker: Broker) -> None:
    broker.bus.target = lambda call, frames: broker.answer(
        call.call, ("A", np.ones(3, np.float32)), ("B", np.ones(2, np.float32))
    )
    response = ask().exec()
    first, second = response.output_tensors()
    view = first.as_numpy()[1:]
    del response, first
    assert broker.read == []
    del second
    assert broker.read == []
    del view
    assert broker.read == [("target", 1)]


def test_large_outputs_that_are_free_are_told_before_the_next_call(broker: Broker) -> None:
    broker.bus.target = lambda call, frames: broker.answer(call.call, ("A", np.ones(1 << 18, np.float32)))
    for _ in range(3):
        ask().exec()
    told = [message.read for message in broker.bus.sent if isinstance(message, messages.Results)]
    assert told == [[("target", 1)], [("target", 2)]]


def test_outputs_without_a_byte_are_read_at_once(broker: Broker) -> None:
    broker.bus.target = lambda call, frames: broker.answer(call.call, ("A", np.ones(0, np.float32)))
    response = ask().exec()
    assert (response.output_tensors()[0].shape(), broker.read) == ([0], [("target", 1)])


def test_outputs_that_others_look_at_too_are_copied_when_seen(broker: Broker) -> None:
    def target(call: messages.Call, frames: Any) -> None:
        shared = broker.output("A", np.zeros(3, np.float32), shared=True)
        response = messages.Response(-1, [shared], 9)
        broker.bus.due.append((messages.Answered(messages.ANSWERED, call.call, response, "target"), []))

    broker.bus.target = target
    (output,) = ask().exec().output_tensors()
    place = output._place.handle
    output.as_numpy()[:] = 7
    assert bytes(broker.reader.view(*place)) == bytes(12)
    assert broker.read == [("target", 9)]


# --- several responses


def three(broker: Broker) -> Callable[[messages.Call, Any], None]:
    def target(call: messages.Call, frames: Any) -> None:
        for number in range(3):
            broker.answer(call.call, ("OUT", np.array([number], np.float32)), final=False)
        broker.answer(call.call)

    return target


def number(response: Any) -> Any:
    return response.output_tensors()[0].as_numpy()[0].item() if response.output_tensors() else None


def test_a_decoupled_call_returns_with_the_first_response(broker: Broker) -> None:
    broker.bus.target = three(broker)
    responses = ask().exec(decoupled=True)
    assert (type(responses), len(broker.bus.due), broker.call.decoupled) == (ResponseIterator, 3, True)
    assert [number(response) for response in responses] == [0.0, 1.0, 2.0, None]


def test_iterating_resumes_and_after_the_end_begins_again(broker: Broker) -> None:
    broker.bus.target = three(broker)
    responses = ask().exec(decoupled=True)
    assert number(next(responses)) == 0.0
    for response in responses:
        assert number(response) == 1.0
        break
    assert [number(response) for response in responses] == [2.0, None]
    with pytest.raises(StopIteration):
        next(responses)
    for _ in range(2):
        assert [number(response) for response in responses] == [0.0, 1.0, 2.0, None]
    for response in responses:
        assert number(response) == 0.0
        break
    assert number(next(responses)) == 1.0
    assert [number(response) for response in responses] == [2.0, None]


def test_what_comes_for_an_iterator_that_is_gone_is_read_at_once(broker: Broker) -> None:
    broker.bus.target = three(broker)
    responses = ask().exec(decoupled=True)
    del responses
    gc.collect()
    assert broker.read == [("target", 1)]
    while broker.bus.due:
        broker.bus.deliver()
    assert broker.read == [("target", 2), ("target", 3)]


def test_cancelling_is_told_until_the_last_response_has_come(broker: Broker) -> None:
    broker.bus.target = three(broker)
    responses = ask().exec(decoupled=True)
    responses.cancel()
    assert broker.bus.sent[1:] == [messages.CancelCall(messages.CANCEL_CALL, broker.call.call)]
    assert len(list(responses)) == 4
    responses.cancel()
    assert len(broker.bus.sent) == 2


# --- awaited


async def deliver_all(broker: Broker) -> None:
    await asyncio.sleep(0)
    while broker.bus.due:
        broker.bus.deliver()
        await asyncio.sleep(0)


def test_an_awaited_call_is_made_at_once(broker: Broker) -> None:
    async def call() -> Any:
        futures = [ask(tensor(number)).async_exec() for number in range(3)]
        assert len(broker.bus.sent) == 3
        for message in reversed(broker.bus.sent):
            broker.echo(message, ())
        await deliver_all(broker)
        return [number(await future) for future in futures]

    assert asyncio.run(call()) == [0.0, 1.0, 2.0]


def test_an_awaited_decoupled_call_gives_an_iterator_that_can_be_awaited_too(broker: Broker) -> None:
    broker.bus.target = three(broker)

    async def call() -> Any:
        future = ask().async_exec(decoupled=True)
        broker.bus.deliver()
        responses = await future
        rest = asyncio.ensure_future(collect(responses))
        await deliver_all(broker)
        return await rest, [number(response) for response in responses]

    async def collect(responses: Any) -> Any:
        return [number(response) async for response in responses]

    assert asyncio.run(call()) == ([0.0, 1.0, 2.0, None], [0.0, 1.0, 2.0, None])


@pytest.mark.parametrize("begun", [False, True])
def test_a_cancelled_task_cancels_the_call(broker: Broker, begun: bool) -> None:
    async def call() -> None:
        future = ask().async_exec()
        if begun:
            await asyncio.sleep(0)
        future.cancel()
        with pytest.raises(asyncio.CancelledError):
            await future

    asyncio.run(call())
    assert broker.bus.sent[1:] == [messages.CancelCall(messages.CANCEL_CALL, broker.call.call)]
    broker.answer(broker.call.call, ("OUT", np.ones(1, np.float32)))
    broker.bus.deliver()
    assert broker.read == [("target", 1)]


def test_an_answer_for_an_event_loop_that_is_closed_is_read(broker: Broker) -> None:
    loop = asyncio.new_event_loop()

    async def call() -> Any:
        return ask().async_exec()

    future = loop.run_until_complete(call())
    loop.close()
    broker.answer(broker.call.call, ("OUT", np.ones(1, np.float32)))
    broker.bus.deliver()
    future._log_destroy_pending = False
    del future
    gc.collect()
    assert broker.read == [("target", 1)]


# --- when there is nobody to ask


def test_calls_end_with_the_stub(broker: Broker) -> None:
    calls.set_serving(False)
    with pytest.raises(pb_utils.TritonModelException, match="only supported during the 'execute' function"):
        ask(tensor(1)).exec()


def test_an_input_that_cannot_be_sent_is_said_at_once(broker: Broker) -> None:
    array = np.ones(3, np.float32)
    given = pb_utils.Tensor("IN", array)
    array.resize((4,), refcheck=False)
    with pytest.raises(pb_utils.TritonModelException, match="was resized"):
        ask(given).exec()
