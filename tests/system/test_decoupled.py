"""Models with any number of responses, sent when and from where they like. One model runs the cases of this file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system.conftest import Repository, Server, Start, eventually, serving
from tests.system.grpc_stream import DECOUPLED, Answer, Stream, streaming

TWO_OUTPUTS = DECOUPLED.replace(
    "dims: [ -1 ] }]\ninstance", 'dims: [ -1 ] },{ name: "B" data_type: TYPE_FP32 dims: [ -1 ] }]\ninstance'
)
BATCHING = (
    DECOUPLED.replace("max_batch_size: 0", "max_batch_size: 8")
    + "dynamic_batching { max_queue_delay_microseconds: 200000 }\n"
)

# IN is how many responses to send; each is its number.
CASES = """
def execute(self, requests):
    import json, threading
    for request in requests:
        case = json.loads(request.parameters()).get("case", "flag_alone")
        returned = getattr(self, case)(request, request.get_response_sender(), int(values(request)[0]))
        if returned is not None:
            return returned

def answer(self, number, **parameters):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number], np.float32))], **parameters)

def flag_alone(self, request, sender, count):
    for number in range(count):
        sender.send(self.answer(number))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

def flag_with_last(self, request, sender, count):
    for number in range(count):
        sender.send(self.answer(number), 1 if number == count - 1 else 0)

def from_thread(self, request, sender, count):
    import threading
    threading.Thread(target=self.later, args=[request, count]).start()

def later(self, request, count):
    time.sleep(0.05)
    for number in range(count):
        request.get_response_sender().send(self.answer(number * float(values(request)[0])))
    request.get_response_sender().send(flags=1)

def an_error_between(self, request, sender, count):
    sender.send(self.answer(1))
    sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("only this one")))
    sender.send(self.answer(2))
    sender.send(flags=1)

def raises(self, request, sender, count):
    for number in range(count):
        sender.send(self.answer(number))
    raise ValueError("out of ideas")

def raises_after_final(self, request, sender, count):
    self.flag_alone(request, sender, count)
    raise ValueError("too late to tell")

def sends_after_final(self, request, sender, count):
    sender.send(flags=1)
    sender.send(self.answer(0))

def returns_a_list(self, request, sender, count):
    sender.send(self.answer(7))
    return []

def forgets(self, request, sender, count):
    sender.send(self.answer(0))

def forgets_in_a_thread(self, request, sender, count):
    import threading
    threading.Thread(target=self.forgets, args=[request, sender, count]).start()

def the_same_object(self, request, sender, count):
    array = np.zeros(1, np.float32)
    response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])
    for number in range(count):
        array[0] = number
        sender.send(response)
    sender.send(flags=1)

def parameters(self, request, sender, count):
    sender.send(self.answer(0, parameters={"a": 1}))
    sender.send(self.answer(1, parameters={"b": "x"}), 1)

def dies(self, request, sender, count):
    sender.send(self.answer(0))
    time.sleep(0.1)
    os._exit(3)

def dies_later(self, request, sender, count):
    import threading
    sender.send(self.answer(0))
    self.kept = request
    threading.Timer(0.2, os._exit, [3]).start()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = Repository(tmp_path_factory.mktemp("models"))
    repository.add("cases", CASES, config=DECOUPLED % 1)
    with serving(repository, tmp_path_factory.mktemp("logs")) as start:
        yield start()


@pytest.fixture
def stream(server: Server) -> Iterator[Stream]:
    with streaming(server) as stream:
        yield stream


def numbers(count: int) -> list[Answer]:
    return [Answer([float(number)]) for number in range(count)]


@pytest.mark.parametrize("count", [0, 1, 3, 1000])
def test_any_number_of_responses_in_their_order_and_the_flag_alone(stream: Stream, count: int) -> None:
    stream.send("cases", [count], request_id="r")
    answers = stream.until_final()
    assert [answer.data for answer in answers] == [[float(number)] for number in range(count)] + [None]
    assert {answer.id for answer in answers} == {"r"}


def test_the_flag_with_the_last_response(stream: Stream) -> None:
    stream.send("cases", [2], "flag_with_last")
    assert stream.until_final() == [Answer([0.0]), Answer([1.0], final=True)]


def test_the_flag_alone_is_told_only_to_those_who_asked(stream: Stream) -> None:
    stream.send("cases", [0], flagged=False)
    stream.send("cases", [1], flagged=False)
    assert stream.next() == Answer([0.0])
    assert stream.is_silent(0.2)


def test_threads_send_after_execute_has_returned(stream: Stream) -> None:
    for _ in range(10):
        stream.send("cases", [3], "from_thread")
    answers = [stream.next() for _ in range(40)]
    assert sorted(answer.data[0] for answer in answers if answer.data) == [0] * 10 + [3] * 10 + [6] * 10
    assert sum(answer.final for answer in answers) == 10


def test_an_error_is_a_response_like_others(stream: Stream) -> None:
    stream.send("cases", [0], "an_error_between")
    answers = [stream.next() for _ in range(4)]
    assert answers == [Answer([1.0]), Answer(None, error="only this one"), Answer([2.0]), Answer(None, final=True)]


def test_what_execute_raises_comes_after_the_responses_sent(stream: Stream) -> None:
    stream.send("cases", [2], "raises")
    *sent, error = stream.until_final()
    assert sent == numbers(2)
    assert error.error.startswith(
        "Failed to process the request(s) for model 'cases_0_0', message: ValueError: out of ideas\n\nAt:\n"
    )


def test_what_execute_raises_after_the_flag_is_only_logged(server: Server, stream: Stream) -> None:
    stream.send("cases", [1], "raises_after_final")
    assert stream.until_final() == [Answer([0.0]), Answer(None, final=True)]
    eventually(lambda: server.lines("ValueError: too late to tell"))
    assert stream.is_silent(0.1)


def test_a_response_after_the_flag_reaches_nobody_but_the_log(server: Server, stream: Stream) -> None:
    stream.send("cases", [1], "sends_after_final", flagged=False)
    eventually(lambda: server.lines("Unable to send response. Response sender has been closed."))
    assert stream.is_silent(0.2)


def test_execute_must_return_none(stream: Stream) -> None:
    stream.send("cases", [0], "returns_a_list")
    sent, error = stream.until_final()
    assert sent == Answer([7.0])
    assert error.error == (
        "Failed to process the request(s) for model 'cases_0_0', message: Python model 'cases_0_0' is using the "
        "decoupled mode and the execute function must return None."
    )


@pytest.mark.parametrize("case", ["forgets", "forgets_in_a_thread"])
def test_a_request_whose_end_was_forgotten_ends_with_an_error(stream: Stream, case: str) -> None:
    stream.send("cases", [0], case)
    sent, error = stream.until_final()
    assert sent == Answer([0.0])
    assert error.error == (
        "Failed to process the request(s) for model 'cases_0_0', message: The model has let go of the request and of "
        "its response sender without sending the final flag."
    )


def test_one_response_object_may_be_sent_again_and_again(stream: Stream) -> None:
    stream.send("cases", [4], "the_same_object")
    assert stream.until_final() == [*numbers(4), Answer(None, final=True)]


def test_each_response_has_its_own_parameters(stream: Stream) -> None:
    stream.send("cases", [0], "parameters")
    assert [answer.parameters for answer in stream.until_final()] == [{"a": 1}, {"b": "x"}]


@pytest.mark.parametrize("case", ["dies", "dies_later"])
def test_who_waits_for_more_is_told_when_the_process_has_died(server: Server, case: str) -> None:
    with streaming(server) as stream:
        stream.send("cases", [0], case)
        sent, error = stream.until_final()
    assert sent == Answer([0.0])
    assert error.error == "Stub process 'cases_0_0' is not healthy."
    eventually(lambda: server.ready("cases"))


def test_outputs_that_were_not_asked_for_are_not_sent(repository: Repository, start: Start) -> None:
    code = """
    def execute(self, requests):
        for request in requests:
            tensors = [pb_utils.Tensor(name, values(request)) for name in ("OUT", "B", "C")]
            request.get_response_sender().send(pb_utils.InferenceResponse(tensors), 1)
    """
    repository.add("m", code, config=TWO_OUTPUTS % 1)
    import tritonclient.grpc

    with streaming(start()) as stream:
        for names in (["OUT"], ["B"], ["OUT", "B"]):
            results = []
            outputs = [tritonclient.grpc.InferRequestedOutput(name) for name in names]
            stream.send("m", [1.0], outputs=outputs)
            results.append(stream._answers.get(timeout=20)[0].get_response())
            assert [output.name for output in results[0].outputs] == names


def test_one_execute_has_several_requests(repository: Repository, start: Start) -> None:
    code = """
    def execute(self, requests):
        for request in reversed(requests):
            sender = request.get_response_sender()
            sender.send(respond(request, np.array([[len(requests)]], np.float32)))
        for request in requests:
            request.get_response_sender().send(flags=1)
    """
    repository.add("m", code, config=BATCHING % 1)
    with streaming(start()) as stream:
        for number in range(8):
            stream.send("m", [[1.0]], request_id=str(number))
        answers = [stream.next() for _ in range(16)]
    assert [answer.data for answer in answers[:8]] == [[[8.0]]] * 8
    assert [answer.id for answer in answers] == [*"76543210", *"01234567"]


def test_a_response_to_a_client_that_is_gone_is_harmless(
    repository: Repository, start: Start, flag: Callable[[str], Path]
) -> None:
    code = f"""
    def execute(self, requests):
        sender = requests[0].get_response_sender()
        if values(requests[0])[0]:
            wait_for({str(flag("gone"))!r})
            for number in range(100):
                sender.send(respond(requests[0], np.zeros(1 << 18, np.float32)))
        sender.send(respond(requests[0], values(requests[0])), 1)
    """
    repository.add("m", code, config=DECOUPLED % 1)
    server = start()
    with streaming(server) as stream:
        stream.send("m", [1.0])
        eventually(lambda: server.pending("m") == 0)
        stream.cancel()
    flag("gone").touch()
    with streaming(server) as stream:
        stream.send("m", [0.0])
        assert stream.until_final() == [Answer([0.0], final=True)]


def test_the_server_waits_for_open_requests_before_it_stops(
    repository: Repository, start: Start, flag: Callable[[str], Path]
) -> None:
    code = f"""
    def execute(self, requests):
        import threading
        threading.Thread(target=self.later, args=requests).start()
    def later(self, request):
        open({str(flag("running"))!r}, "w")
        wait_for({str(flag("go on"))!r})
        request.get_response_sender().send(respond(request, values(request)), 1)
    """
    repository.add("m", code, config=DECOUPLED % 1)
    server = start()
    with streaming(server) as stream:
        stream.send("m", [1.0])
        eventually(flag("running").exists)
        server.process.terminate()
        eventually(lambda: server.lines("Waiting for in-flight requests to complete."))
        flag("go on").touch()
        assert stream.until_final() == [Answer([1.0], final=True)]
    assert server.wait() == 0
