"""Calls of models in real stub processes, as a broker sees them."""

import numpy
import pytest

from protocol.codec import decode_from_stub, encode
from protocol.messages import (
    ANSWERED,
    RETURNED,
    Answered,
    Call,
    CancelCall,
    Handle,
    Response,
    Returned,
    TensorRef,
)
from tests.stub.bare_broker import DEADLINE_S

CALLER = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]
    def ask(self, *tensors):
        return pb_utils.InferenceRequest(model_name="other", inputs=list(tensors), requested_output_names=["OUT"])
"""
PASS_ON = """
    def answer(self, request):
        return pb_utils.InferenceResponse(self.ask(*request.inputs()).exec().output_tensors())
"""


def answer(broker, call, *values, lease=1, **fields):
    """Another stub's outputs; their memory is the test's own."""
    data = numpy.array(values, numpy.float32).tobytes()
    block = broker.store.allocate(len(data))
    block.view[:] = data
    tensor = TensorRef("OUT", "FP32", (len(values),), Handle(*block[:3]))
    broker.send(Answered(ANSWERED, call.call, Response(-1, [tensor], lease, **fields), "other_1"))


def run(broker, *values):
    request, _ = broker.request(*values)
    broker.execute(request)
    return request


def test_a_request_s_input_goes_on_where_it_lies_and_the_answer_too(broker, start, model):
    start()
    broker.serve(model(PASS_ON, source=CALLER))
    values = range(1 << 15)
    request = run(broker, *values)
    call = broker.receive()
    (reference,) = call.request.inputs
    assert (reference.place, reference.shared) == (request.inputs[0].place, True)
    assert (call.request.id, call.request.model, call.batch, call.waits) == (0, "other", request.id, True)
    answer(broker, call, *values)
    (executed,) = broker.receive().executed
    (response,) = executed.responses
    (output,) = response.outputs
    assert (output.place.segment, output.shared) == (request.inputs[0].place.segment, True)  # all of it is the test's
    assert response.lease
    broker.execute(released=[response.lease])
    assert broker.receive().read == [("other_1", 1)]


def test_what_a_call_has_borrowed_is_told_once_execute_is_over(broker, start, model):
    start()
    forget = "def answer(self, request):\n    self.ask().exec()\n    return pb_utils.InferenceResponse([])"
    broker.serve(model(forget, source=CALLER))
    run(broker, 1.0)
    answer(broker, broker.receive(), 1.0)
    told = broker.receive()
    while not told.read:
        told = broker.receive()
    assert told.read == [("other_1", 1)]


def test_the_memory_of_inputs_is_used_again_after_returned(broker, start, model):
    start()
    twice = """
        def answer(self, request):
            self.ask(pb_utils.Tensor("IN", np.ones(4, np.float32))).exec()
            return pb_utils.InferenceResponse([])
    """
    broker.serve(model(twice, source=CALLER))
    calls, places = [], []
    for retained in (True, False, False):
        run(broker, 1.0)
        call = broker.receive()
        calls.append(call)
        places.append(call.request.inputs[0].place)
        answer(broker, call, 1.0, retained=retained)
        while not broker.receive().executed:
            pass
        if len(places) == 2:
            broker.send(Returned(RETURNED, [calls[0].call]))
    assert places[0] != places[1]


def test_a_thread_s_call_belongs_to_no_batch_and_comes_when_execute_is_over(broker, start, model):
    start()
    late = """
        def answer(self, request):
            threading.Thread(target=self.call, args=[request.get_response_sender()]).start()
        def call(self, sender):
            time.sleep(0.05)
            response = self.ask().exec()
            sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        def execute(self, requests):
            for request in requests:
                self.answer(request)
    """
    config = {"name": "m", "output": [{"name": "OUT"}], "model_transaction_policy": {"decoupled": True}}
    broker.serve(model(late, source=CALLER), config=config)
    run(broker, 1.0)
    assert broker.receive().executed
    call = broker.receive()
    assert (call.batch, call.waits) == (0, False)
    answer(broker, call, 5.0)
    (response,) = broker.receive().responses
    assert broker.values(response) == [5.0]


def test_the_calls_of_a_coroutine_are_made_at_once_and_its_batch_waits_for_them(broker, start, model):
    start()
    gather = """
        async def execute(self, requests):
            import asyncio
            calls = [self.ask().async_exec() for _ in range(3)]
            return [pb_utils.InferenceResponse((await asyncio.gather(*calls))[-1].output_tensors())]
    """
    broker.serve(model(gather, source=CALLER))
    request = run(broker, 1.0)
    calls = [broker.receive() for _ in range(3)]
    assert {(call.batch, call.waits) for call in calls} == {(request.id, True)}
    for number, call in enumerate(calls):
        answer(broker, call, number, lease=number + 1)
    (executed,) = next(message for message in iter(broker.receive, None) if message.executed).executed
    assert broker.values(executed.responses[0]) == [2.0]


def test_a_coroutine_that_is_cancelled_cancels_its_call(broker, start, model):
    start()
    give_up = """
        def answer(self, request):
            import asyncio
            async def call():
                try:
                    await asyncio.wait_for(self.ask().async_exec(), 0.05)
                except asyncio.TimeoutError:
                    return pb_utils.InferenceResponse([])
            return asyncio.run(call())
    """
    broker.serve(model(give_up, source=CALLER))
    run(broker, 1.0)
    call, cancelled = broker.receive(), broker.receive()
    assert (type(call), type(cancelled), cancelled.call) == (Call, CancelCall, call.call)
    assert broker.receive().executed
    answer(broker, call, 1.0, error=(7, "cancelled"))


@pytest.mark.parametrize("responses", [1, 2])
def test_a_forked_process_speaks_for_itself(broker, start, model, responses):
    start()
    fork = """
        def answer(self, request):
            read, write = os.pipe()
            child = os.fork()
            if not child:
                responses = self.ask(pb_utils.Tensor("IN", np.ones(1, np.float32))).exec(decoupled=True)
                os.write(write, str([r.output_tensors()[0].as_numpy()[0].item() for r in responses]).encode())
                os._exit(0)
            os.waitpid(child, 0)
            numbers = np.array(eval(os.read(read, 100)), np.float32)
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", numbers)])
    """
    broker.serve(model(fork, source=CALLER))
    run(broker, 1.0)
    assert broker.router.poll(DEADLINE_S * 1000)
    key, header, frame = broker.router.recv_multipart()
    call = decode_from_stub(header)
    assert key.decode().startswith(broker.key + "/")
    assert (call.request.inputs[0].place, frame) == (0, numpy.ones(1, numpy.float32).tobytes())
    for number in range(responses):
        output = TensorRef("OUT", "FP32", (1,), 0)
        response = Response(-1, [output], final=number == responses - 1)
        header = encode(Answered(ANSWERED, call.call, response, "other_1"))
        broker.router.send_multipart([key, header, numpy.float32(number).tobytes()])
    (executed,) = broker.receive().executed
    assert broker.values(executed.responses[0]) == list(range(responses))
