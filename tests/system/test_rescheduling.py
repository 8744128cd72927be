"""Requests that their model wants to be executed again (iterative sequences)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.system.conftest import CONFIG, Repository, Server, serving, together
from tests.system.grpc_stream import DECOUPLED, Answer, streaming

ITERATIVE = CONFIG + "sequence_batching { iterative_sequence: true }\n"
ITERATIVE_DECOUPLED = DECOUPLED + "sequence_batching { iterative_sequence: true }\n"
# IN is how often to run; the answer says what each execution has seen.
COUNTDOWN = """
def initialize(self, args):
    self.seen = {}

def execute(self, requests):
    answers = []
    for request in requests:
        seen = self.seen.setdefault(request.request_id(), [])
        seen.append((request.correlation_id(), request.flags(), float(values(request)[0])))
        values(request)[0] -= 100  # the next time it is as the client sent it
        if len(seen) < seen[0][2]:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            answers.append(None)
        else:
            del self.seen[request.request_id()]
            pb_utils.Logger.log_info("seen " + str(seen))
            answers.append(respond(request, np.array([len(seen)], np.float32)))
    return answers
"""
COUNTDOWN_DECOUPLED = """
def initialize(self, args):
    self.rounds = {}

def execute(self, requests):
    for request in requests:
        id, sender = request.request_id(), request.get_response_sender()
        self.rounds[id] = self.rounds.get(id, 0) + 1
        sender.send(respond(request, np.array([self.rounds[id]], np.float32)))
        if self.rounds[id] < values(request)[0]:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        else:
            del self.rounds[id]
            sender.send(flags=1)
"""
WRONG = """
def initialize(self, args):
    self.again = False

def execute(self, requests):
    requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
    self.again = not self.again
    if self.again:
        return [respond(requests[0], values(requests[0]))]
    requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL)
    return [respond(requests[0], values(requests[0]))]
"""
RAISING = """
def execute(self, requests):
    requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
    raise ValueError("boom")
"""
CALLING = """
def execute(self, requests):
    answers = []
    for request in requests:
        response = pb_utils.InferenceRequest(inputs=request.inputs(), model_name="countdown", request_id="bls",
                                             requested_output_names=["OUT"]).exec()
        assert not response.has_error(), response.error().message()
        answers.append(respond(request, response.output_tensors()[0].as_numpy()))
    return answers
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = Repository(tmp_path_factory.mktemp("models"))
    repository.add("countdown", COUNTDOWN, config=ITERATIVE % 1)
    repository.add("streaming", COUNTDOWN_DECOUPLED, config=ITERATIVE_DECOUPLED % 1)
    repository.add("wrong", WRONG, config=ITERATIVE % 1)
    repository.add("raising", RAISING, config=ITERATIVE % 1)
    repository.add("not_iterative", COUNTDOWN)
    repository.add("calling", CALLING)
    with serving(repository, tmp_path_factory.mktemp("logs")) as start:
        yield start()


def seen(server: Server) -> list[str]:
    return [json.loads('"' + line.split("seen ")[1].split('"')[0] + '"') for line in server.lines("seen [(")]


def test_it_is_executed_until_it_is_answered(server: Server) -> None:
    before = len(seen(server))
    for times in (3, 1):
        assert server.post("countdown", [float(times)], id="a").data == [times]
    first, second = seen(server)[before:]
    assert first == "[(1, 1, 3.0), (1, 0, 3.0), (1, 0, 3.0)]"
    assert second == "[(2, 1, 1.0)]"


def test_many_at_a_time(server: Server) -> None:
    jobs = [lambda n=n: server.post("countdown", [float(n % 5 + 1)], id=str(n)).data for n in range(40)]  # type: ignore[misc]
    assert together(8, jobs) == [[float(number % 5 + 1)] for number in range(40)]


def test_a_response_in_each_round(server: Server) -> None:
    with streaming(server) as stream:
        stream.send("streaming", [3.0], request_id="a")
        assert [answer.data for answer in stream.until_final()] == [[1.0], [2.0], [3.0], None]


def test_a_rescheduled_request_must_not_be_answered(server: Server) -> None:
    answer = server.post("wrong", [1.0])
    assert answer.status == 500
    assert answer.error.startswith(
        "Failed to process the request(s) for model 'wrong_0_0', message: Expected a None object in the execute "
        "function return list for reschduled request, found type '<class '"
    )
    assert server.post("wrong", [1.0]).data == [1.0]


def test_what_is_raised_counts_more_than_the_flag(server: Server) -> None:
    answer = server.post("raising", [1.0])
    assert "ValueError: boom" in answer.error


def test_without_an_iterative_sequence_it_is_an_error(server: Server) -> None:
    answer = server.post("not_iterative", [2.0], id="a")
    assert answer.status == 500
    released = "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured"
    assert answer.error.startswith(released)
    assert answer.error.endswith("model 'not_iterative' needs sequence_batching { iterative_sequence: true }")


def test_a_model_that_is_called_may_reschedule(server: Server) -> None:
    assert server.post("calling", [4.0]).data == [4.0]


def test_a_stream_goes_on_after_a_rescheduled_request(server: Server) -> None:
    with streaming(server) as stream:
        stream.send("countdown", [2.0], request_id="a")
        assert stream.next() == Answer([2.0], final=True, id="a")
