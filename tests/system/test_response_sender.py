"""Response senders in default mode: each way in which a model may answer its one response, alone and in a batch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.conftest import CONFIG, Repository, Server, eventually, serving, together
from tests.system.grpc_stream import Answer, streaming

BATCHING = CONFIG.replace("max_batch_size: 0", "max_batch_size: 4") + (
    "dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 100000 }\n"
)
PREFIX = "Failed to process the request(s) for model '{}_0_0', message: "
CASES = """
def execute(self, requests):
    import json
    case = getattr(self, json.loads(requests[0].parameters())["case"])
    return case(requests, [request.get_response_sender() for request in requests])

def answers(self, requests):
    return [respond(request, values(request)) for request in requests]

def in_a_thread(self, function, *arguments):
    import threading
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    return thread

def send_all(self, requests, senders, flags=1, wait_s=0.0):
    time.sleep(wait_s)
    for request, sender in zip(requests, senders):
        sender.send(respond(request, values(request)), flags)

def returned(self, requests, senders):
    return self.answers(requests)

def sent_then_none(self, requests, senders):
    self.send_all(requests, senders)

def sent_then_list_of_none(self, requests, senders):
    self.send_all(requests, senders)
    return [None] * len(requests)

def sent_and_flag_later(self, requests, senders):
    self.send_all(requests, senders, 0)
    for sender in senders:
        sender.send(flags=1)

def sent_without_flag(self, requests, senders):
    self.send_all(requests, senders, 0)

def sent_by_a_thread_meanwhile(self, requests, senders):
    self.in_a_thread(self.send_all, requests, senders).join()

def sent_by_a_thread_afterwards(self, requests, senders):
    self.in_a_thread(self.send_all, requests, senders, 1, 0.05)

def sent_by_a_thread_afterwards_for_list_of_none(self, requests, senders):
    self.in_a_thread(self.send_all, requests, senders, 1, 0.05)
    return [None] * len(requests)

def sent_and_returned(self, requests, senders):
    self.send_all(requests, senders)
    return [pb_utils.InferenceResponse(error=pb_utils.TritonError("dropped"))] * len(requests)

def sent_twice(self, requests, senders):
    self.send_all(requests, senders, 0)
    self.send_all(requests, senders, 0)

def two_responses(self, requests, senders):
    self.send_all(requests, senders, 1)
    self.send_all(requests, senders, 0)

def only_the_flag(self, requests, senders):
    senders[0].send(flags=1)

def returned_then_sent_by_a_thread(self, requests, senders):
    self.in_a_thread(self.try_later, requests, senders)
    return self.answers(requests)

def try_later(self, requests, senders):
    time.sleep(0.05)
    try:
        self.send_all(requests, senders)
    except pb_utils.TritonModelException as error:
        pb_utils.Logger.log_info("the thread was told: " + str(error))

def nothing(self, requests, senders):
    pass

def list_of_none(self, requests, senders):
    return [None] * len(requests)

def forgotten_by_a_thread(self, requests, senders):
    self.in_a_thread(lambda kept: time.sleep(0.05), (requests, senders))

def forgotten_by_a_thread_of_a_library(self, requests, senders):
    import ctypes
    kept = [requests, senders]
    def forget(_):
        time.sleep(0.05)
        kept.clear()
    forget = self.forget = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(forget)
    ctypes.CDLL(None).pthread_create(ctypes.byref(ctypes.c_ulong()), None, forget, None)

def some_sent_some_returned(self, requests, senders):
    self.send_all(requests[1:], senders[1:])
    return self.answers(requests[:1]) + [None] * (len(requests) - 1)

def sent_then_raises(self, requests, senders):
    self.send_all(requests[:1], senders[:1])
    raise ValueError("after sending")

def after_close(self, requests, senders):
    self.send_all(requests, senders)
    senders[0].send(flags=1)
"""
ANSWERED = [
    "returned",
    "sent_then_none",
    "sent_then_list_of_none",
    "sent_and_flag_later",
    "sent_without_flag",
    "sent_by_a_thread_meanwhile",
    "sent_by_a_thread_afterwards",
    "sent_by_a_thread_afterwards_for_list_of_none",
    "sent_and_returned",
    "sent_twice",
    "two_responses",
    "returned_then_sent_by_a_thread",
    "some_sent_some_returned",
    "after_close",
]
UNANSWERED = ["nothing", "list_of_none", "forgotten_by_a_thread", "forgotten_by_a_thread_of_a_library"]
NO_RESPONSE = "The execute function returned no response for the request and sent none through its response sender."


def as_coroutine(code: str) -> str:
    return code.replace("def execute", "async def execute")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = Repository(tmp_path_factory.mktemp("models"))
    repository.add("plain", CASES)
    repository.add("coroutine", as_coroutine(CASES))
    repository.add("batching", CASES, config=BATCHING % 1)
    with serving(repository, tmp_path_factory.mktemp("logs")) as start:
        yield start()


MODELS = pytest.mark.parametrize("model", ["plain", "coroutine"])


@MODELS
@pytest.mark.parametrize("case", ANSWERED)
def test_each_way_to_answer_by_http_and_on_a_stream(server: Server, model: str, case: str) -> None:
    for number in (1.0, 2.0):
        assert server.post(model, [number], parameters={"case": case}).data == [number]
    with streaming(server) as stream:
        stream.send(model, [3.0], case)
        assert stream.next() == Answer([3.0], final=True)


@pytest.mark.parametrize("case", ANSWERED)
def test_each_way_to_answer_a_batch(server: Server, case: str) -> None:
    def post(number: int) -> list[float]:
        (row,) = server.call("POST", "/v2/models/batching/infer", body(number, case)).json["outputs"]
        return list(row["data"])

    assert together(4, [lambda n=number: post(n) for number in range(4)]) == [[0.0], [1.0], [2.0], [3.0]]  # type: ignore[misc]


def body(number: int, case: str) -> bytes:
    return (
        f'{{"inputs":[{{"name":"IN","datatype":"FP32","shape":[1,1],"data":[{number}]}}],'
        f'"parameters":{{"case":"{case}"}}}}'
    ).encode()


@MODELS
@pytest.mark.parametrize("case", UNANSWERED)
def test_a_request_that_nobody_can_answer_any_more_is_answered_with_an_error(
    server: Server, model: str, case: str
) -> None:
    answer = server.post(model, [1.0], parameters={"case": case})
    assert answer.status == 500
    assert answer.error == PREFIX.format(model) + NO_RESPONSE


@MODELS
def test_the_flag_before_a_response_is_an_error(server: Server, model: str) -> None:
    answer = server.post(model, [1.0], parameters={"case": "only_the_flag"})
    assert answer.status == 500
    assert "Non-decoupled model cannot send complete final before sending a response." in answer.error


@MODELS
@pytest.mark.parametrize(
    ("case", "line"),
    [
        ("sent_and_returned", "Non-decoupled model cannot send more than one response."),
        ("sent_twice", "Non-decoupled model cannot send more than one response."),
        ("after_close", "Unable to send response. Response sender has been closed."),
        ("sent_then_raises", "ValueError: after sending"),
        (
            "returned_then_sent_by_a_thread",
            "the thread was told: Unable to send response. Non-decoupled model cannot send more than one response.",
        ),
    ],
)
def test_what_no_client_is_told_is_logged(server: Server, model: str, case: str, line: str) -> None:
    before = len(server.lines(line))
    assert server.post(model, [1.0], parameters={"case": case}).data == [1.0]
    eventually(lambda: len(server.lines(line)) > before)
