"""What models ask of the broker, from wherever they like: real stub processes, the broker is a bare ROUTER."""

import time

import numpy
import psutil
import pytest

from protocol.codec import decode_from_stub, encode
from protocol.messages import (
    ANSWERED,
    CANCEL,
    EXECUTE,
    FINISH,
    TOLD,
    Answered,
    Batch,
    Call,
    Cancel,
    Control,
    Execute,
    Failed,
    Finish,
    Ready,
    Response,
    Results,
    TensorRef,
    Told,
)
from tests.stub.bare_broker import DEADLINE_S, ECHO

# ``ready`` answers 1 where the broker says so.
ASK = """
    def answer(self, array):
        {body}
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(found, np.float32))])
    def ready(self, name):
        return float(pb_utils.is_model_ready(name))
"""


def asking(body):
    return ASK.format(body=body)


def tell(broker, control, value=1.0):
    assert isinstance(control, Control), control
    broker.send(Told(TOLD, control.call, None, float(value)))


def one(results):
    """The one response of the one batch."""
    (executed,) = results.executed
    (response,) = executed.responses
    return response


@pytest.mark.parametrize("times", [1, 3])
def test_execute_waits_for_the_answer(broker, model, start, times):
    start()
    broker.serve(model(asking(f"found = [self.ready('x') for _ in range({times})]")))
    broker.execute(broker.request(0)[0])
    for number in range(times):
        tell(broker, broker.receive(), number % 2)
    assert broker.values(one(broker.receive())) == [number % 2 for number in range(times)]


def test_initialize_may_ask(broker, model, start):
    start()
    broker.load(model("def initialize(self, args): assert pb_utils.is_model_ready('x')"))
    tell(broker, broker.receive())
    assert isinstance(broker.receive(), Ready)


def test_what_is_raised_because_of_an_answer_fails_the_load(broker, model):
    broker.start()
    broker.load(model("def initialize(self, args): pb_utils.is_model_ready('x')"))
    broker.send(Told(TOLD, broker.receive().call, (2, "no such thing")))
    failed = broker.receive()
    assert isinstance(failed, Failed)
    assert "Failed to check model readiness: no such thing" in failed.text


def test_work_that_comes_meanwhile_waits_its_turn(broker, model):
    broker.start()
    broker.serve(model(asking("found = [self.ready('x')] if array[0] else [5]")))
    first, second = (broker.request(value)[0] for value in (1, 0))
    broker.execute(first)
    control = broker.receive()
    broker.execute(second)
    tell(broker, control)
    answered = [one(broker.receive()) for _ in range(2)]
    assert [response.request for response in answered] == [first.id, second.id]
    assert [broker.values(response) for response in answered] == [[1], [5]]


def test_what_was_executed_before_does_not_wait_with_it(broker, model):
    """Quick answers gather in one message, but not behind a question."""
    broker.start()
    broker.serve(model(asking("found = [self.ready('x')] if array[0] else [5]")))
    quick, asks = (broker.request(value)[0] for value in (0, 1))
    broker.execute(quick, asks)
    said = [broker.receive(), broker.receive()]
    (results,) = [each for each in said if isinstance(each, Results)]
    assert one(results).request == quick.id
    tell(broker, *[each for each in said if isinstance(each, Control)])
    assert one(broker.receive()).request == asks.id


def test_finalize_may_ask_but_call_no_model(broker, model, start):
    finalize = """
    def finalize(self):
        assert pb_utils.is_model_ready("x")
        pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name="m").exec()
    """
    start()
    broker.serve(model(finalize))
    broker.finish()
    tell(broker, broker.receive())
    error = broker.receive().error
    assert error.startswith("TritonModelException: BLS is only supported during the 'execute' function.")


THREADS = """import concurrent.futures
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            found = list(pool.map(self.ready, [str(n) for n in range(40)]))"""


def test_threads_are_answered_in_any_order_while_execute_is_busy(broker, model, start):
    start()
    broker.serve(model(asking(THREADS)))
    for _ in range(2):
        broker.execute(broker.request(0)[0])
        waiting = []
        for number in range(40):
            waiting.append(broker.receive())
            if number >= 7:
                control = waiting.pop(number % len(waiting))
                tell(broker, control, float(control.model) % 3 == 0)
        for control in waiting:
            tell(broker, control, float(control.model) % 3 == 0)
        assert broker.values(one(broker.receive())) == [float(number % 3 == 0) for number in range(40)]


def test_a_thread_is_answered_while_nothing_else_happens_and_work_goes_on(broker, model, start):
    ask = """
    def initialize(self, args):
        threading.Thread(target=self.ask, daemon=True).start()
    def ask(self):
        while True:
            pb_utils.is_model_ready("x")
    """
    start()
    broker.load(model(ask))
    message = broker.receive()
    while not isinstance(message, Ready):
        tell(broker, message)
        message = broker.receive()
    for number in range(50):
        request, _ = broker.request(number)
        broker.execute(request)
        message = broker.receive()
        while not isinstance(message, Results):
            tell(broker, message)
            message = broker.receive()
        assert broker.values(one(message)) == [number]


COROUTINES = """
    def answer(self, array):
        import asyncio
        return asyncio.run(self.call_all(int(array[0])))
    async def call_all(self, count):
        import asyncio
        calls = [pb_utils.InferenceRequest(inputs=[], requested_output_names=[], model_name=str(number)).async_exec()
                 for number in range(count)]
        tensors = [response.output_tensors()[0].as_numpy() for response in await asyncio.gather(*calls)]
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.concatenate(tensors))])
"""


def answer(broker, call):
    """With its model's name, a number, in a frame."""
    assert isinstance(call, Call), call
    tensor = TensorRef("OUT", "FP32", (1,), 0)
    answered = Answered(ANSWERED, call.call, Response(0, [tensor]), "other")
    broker.send(answered, [numpy.array([float(call.request.model)], numpy.float32).tobytes()])


def test_coroutines_in_execute_are_answered(broker, model, start):
    start()
    broker.serve(model(COROUTINES))
    broker.execute(broker.request(5)[0])
    calls = [broker.receive() for _ in range(5)]
    assert {(call.batch, call.waits) for call in calls} == {(broker.last_id, True)}
    for call in reversed(calls):
        answer(broker, call)
    assert broker.values(one(broker.receive())) == [0, 1, 2, 3, 4]


FORKED = """
    def answer(self, array):
        with multiprocessing.get_context("fork").Pool(2) as pool:
            found = pool.map(call, ["3", "4"])
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(found, np.float32))])
"""
CALL = """
import multiprocessing
def call(name):
    request = pb_utils.InferenceRequest(inputs=[pb_utils.Tensor("IN", np.ones(1, np.float32))], model_name=name,
                                        requested_output_names=[])
    return request.exec().output_tensors()[0].as_numpy()[0]
"""


def test_forked_processes_have_a_connection_of_their_own(broker, model, start):
    start()
    broker.serve(model(FORKED, CALL + ECHO))
    broker.execute(broker.request(0)[0])
    for _ in range(2):
        assert broker.router.poll(DEADLINE_S * 1000)
        key, header, *frames = broker.router.recv_multipart()
        assert key.decode().startswith(broker.key + "/")
        call = decode_from_stub(header)
        assert len(frames) == 1
        assert call.request.inputs[0].place == 0
        tensor = TensorRef("OUT", "FP32", (1,), 0)
        answered = Answered(ANSWERED, call.call, Response(0, [tensor]), "other")
        data = numpy.array([float(call.request.model)], numpy.float32).tobytes()
        broker.router.send_multipart([key, encode(answered), data])
    assert broker.values(one(broker.receive())) == [3, 4]
    broker.execute(broker.request(0)[0])  # the stub itself is as it was
    expect_end(broker, {forked_pid(broker) for _ in range(2)})


FORKED_COROUTINE = """
    def answer(self, array):
        async def call():
            request = pb_utils.InferenceRequest(inputs=[], model_name="other", requested_output_names=[])
            if array[0]:
                async for response in await request.async_exec(decoupled=True):
                    pass
            await request.async_exec()
        child = multiprocessing.get_context("fork").Process(target=lambda: asyncio.run(call()))
        child.start()
        child.join()
"""


@pytest.mark.parametrize("decoupled", [0, 1])
def test_a_coroutine_of_a_forked_process_does_not_outlive_the_stub(broker, model, start, decoupled):
    start()
    broker.serve(model(FORKED_COROUTINE, "import asyncio, multiprocessing" + ECHO))
    broker.execute(broker.request(decoupled)[0])
    expect_end(broker, {forked_pid(broker)})


EARLY_POOL = """
    def initialize(self, args):
        self.pool = multiprocessing.get_context("fork").Pool(1)
        try:
            self.pool.apply(call, ["3"])
        except pb_utils.TritonModelException as refused:
            self.refused = str(refused)
    def answer(self, array):
        found = [self.pool.apply(call, ["3"])]
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(found, np.float32))])
    def finalize(self):
        self.pool.terminate()
        pb_utils.Logger.log_info(self.refused)
"""


def test_processes_that_were_forked_before_the_model_was_ready_call_once_it_is(broker, model, start):
    start()
    broker.serve(model(EARLY_POOL, CALL + ECHO))
    broker.execute(broker.request(0)[0])
    key, header, *_ = broker.router.recv_multipart()
    tensor = TensorRef("OUT", "FP32", (1,), 0)
    answered = Answered(ANSWERED, decode_from_stub(header).call, Response(0, [tensor]), "other")
    broker.router.send_multipart([key, encode(answered), numpy.float32(5).tobytes()])
    assert broker.values(one(broker.receive())) == [5]
    broker.send(Finish(FINISH))
    assert broker.wait_for_log().text == "BLS is only supported during the 'execute' function."


def expect_end(broker, waiting: set[int]) -> None:
    """Once the stub is dead."""
    broker.end_stub()
    deadline = time.monotonic() + DEADLINE_S
    while any(map(psutil.pid_exists, waiting)):
        assert time.monotonic() < deadline, "they wait for answers that nobody will send"
        time.sleep(0.01)


def forked_pid(broker) -> int:
    """Of the process that has sent the next message."""
    key, *_ = broker.router.recv_multipart()
    stub, _, rest = key.decode().partition("/")
    assert stub == broker.key
    return int(rest.partition("-")[0])


# --- cancellation -----------------------------------------------------------------------------------------------

UNTIL_CANCELLED = """
class TritonPythonModel:
    def execute(self, requests):
        pb_utils.Logger.log_info("running")
        while not requests[0].is_cancelled():
            pass
        error = pb_utils.TritonError("gone", pb_utils.TritonError.CANCELLED)
        return [pb_utils.InferenceResponse(error=error) for _ in requests]
"""


def test_execute_sees_that_its_request_was_cancelled(broker, model, start):
    start()
    broker.serve(model(source=UNTIL_CANCELLED))
    request, _ = broker.request(1)
    broker.execute(request)
    broker.wait_for_log()
    broker.send(Cancel(CANCEL, [5, request.id]))
    assert one(broker.receive()).error == (7, "gone")


def test_what_was_cancelled_before_its_turn_is_answered_and_not_executed(broker, model):
    broker.start()
    broker.serve(model(source=UNTIL_CANCELLED))
    first, second, third, fourth = (broker.request(value)[0] for value in range(4))
    broker.execute(first, second)
    broker.wait_for_log()
    broker.send(Execute(EXECUTE, [Batch(900, [third, fourth])], []))
    broker.send(Cancel(CANCEL, [second.id, first.id, third.id, fourth.id]))
    answers = []
    while len(answers) < 4:
        answers += [response for executed in broker.receive().executed for response in executed.responses]
    assert [response.request for response in answers] == [first.id, second.id, third.id, fourth.id]
    assert [response.error for response in answers] == [(7, "gone"), (7, ""), (7, ""), (7, "")]
    assert broker.logs == []
