"""Models that call other models: results, errors, streams. The driver runs the cases of this file."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc_client

from tests.system.bls_models import MODELS, Cases, drive
from tests.system.conftest import Repository, Server, serving

case = Cases()


@pytest.fixture(scope="module", params=["small tensors go with messages", "all lie in shared memory"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if "all" in request.param:
        request.getfixturevalue("all_in_shared_memory")
    with case.serving(tmp_path_factory.mktemp("bls"), *MODELS) as server:
        yield server


# --- calls and results --------------------------------------------------------------------------------------------

CHAIN = case("""
response = self.ask("ident", [self.tensor(1, 2)]).exec()
assert response.error() is None and response.parameters() == "{}"
(tensor,) = response.output_tensors()
assert (tensor.name(), tensor.shape()) == ("OUT", [2])
response = self.ask(b"double", [pb_utils.Tensor("IN", tensor.as_numpy())]).exec()
return self.data(response)
""")


def test_models_are_called_one_after_the_other(server: Server) -> None:
    assert drive(server, CHAIN) == [[2.0, 4.0]]


SEVERAL = case("""
ask = self.ask("double", [self.tensor(1)])
return [self.data(ask.exec()) for _ in range(100)]
""")


def test_one_request_object_is_executed_a_hundred_times(server: Server) -> None:
    assert drive(server, SEVERAL) == [[[2.0]]] * 100


OUTPUT_NAMES = case("""
def names(*wanted):
    response = self.ask("two", [self.tensor(1)], requested_output_names=list(wanted)).exec()
    return sorted((tensor.name(), tensor.as_numpy()[0].item()) for tensor in response.output_tensors())
return [names(), names("TWICE"), names("TWICE", "OUT")]
""")


def test_no_name_asks_for_all_outputs(server: Server) -> None:
    every = [["OUT", 1.0], ["TWICE", 2.0]]
    assert drive(server, OUTPUT_NAMES) == [every, [["TWICE", 2.0]], every]


FIELDS = case("""
def about(**fields):
    response = self.ask("about", [self.tensor()], **fields).exec()
    assert json.loads(response.parameters()) == {"a": 1}
    return json.loads(response.output_tensors()[0].as_numpy()[0])
parameters = {"text": "x", "number": -3, "truth": True}
ask = self.ask("about", [self.tensor()], flags=pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, correlation_id=7)
ask.set_flags(pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END)
return [
    about(),
    about(request_id="r1", correlation_id=2**64 - 1, flags=3, timeout=11000000000, parameters=parameters,
          requested_output_names=["OUT"], model_version=1, trace=request.trace(),
          preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0)),
    about(correlation_id="s"),
    json.loads(ask.exec().output_tensors()[0].as_numpy()[0])[2],
]
""")


def test_the_model_called_sees_what_the_caller_said(server: Server) -> None:
    parameters = {"text": "x", "number": -3, "truth": True}
    assert drive(server, FIELDS) == [
        ["", 0, 0, 0, {}, ["OUT"]],
        ["r1", 2**64 - 1, 3, 11_000_000_000, parameters, ["OUT"]],
        ["", "s", 0, 0, {}, ["OUT"]],
        2,
    ]


EMPTY = case("""
response = self.ask("ident", [self.tensor()]).exec()
return [response.output_tensors()[0].shape(), self.data(response)]
""")


def test_a_tensor_without_elements_goes_there_and_back(server: Server) -> None:
    assert drive(server, EMPTY) == [[0], [[]]]


BYTES = case("""
elements = np.array([b"a\\0", b"", b"\\0", b"abc\\0def", "\\u00e9\\u6f22".encode(), bytes(range(256))], object)
tensor = pb_utils.Tensor("IN", elements)
seen = self.ask("strings", [tensor]).exec().output_tensors()[0]
again = self.ask("strings", [pb_utils.Tensor("IN", seen.as_numpy())]).exec().output_tensors()[0].as_numpy()
return [seen.as_numpy().tolist() == elements.tolist(), again.tolist() == elements.tolist(), again.dtype.kind]
""")


def test_bytes_elements_keep_every_nul(server: Server) -> None:
    assert drive(server, BYTES) == [True, True, "O"]


# --- errors -------------------------------------------------------------------------------------------------------

ERRORS = case("""
def error(model, *tensors, **fields):
    response = self.ask(model, list(tensors), **fields).exec()
    assert response.has_error() and response.output_tensors() == [] and response.parameters() == ""
    return [response.error().message(), response.error().code().name]
one = self.tensor(1)
return [
    error("nobody", one),
    error("ident", one, model_version=7),
    error("ident"),
    error("ident", pb_utils.Tensor("IN", np.ones(1, np.int32))),
    error("ident", one, requested_output_names=["SUM"]),
    error("repeat", one),
    error("failing", self.tensor(1)),
    error("failing", self.tensor(2)),
    error("dying", one),
]
""")


def test_errors_are_returned_with_their_code(server: Server) -> None:
    nobody, version, missing, datatype, output, decoupled, raised, returned, died = drive(server, ERRORS)
    prefix = "Model {} - Error when running inference: "
    assert nobody == [prefix.format("nobody") + "Request for unknown model: 'nobody' is not found", "INTERNAL"]
    assert version == [prefix.format("ident") + "Request for unknown model: 'ident' version 7 is not found", "INTERNAL"]
    assert missing[0].startswith(prefix.format("ident") + "[request id: <id_unknown>] expected 1 inputs but got 0")
    assert datatype[0].startswith(prefix.format("ident") + "[request id: <id_unknown>] inference input 'IN' data-type")
    assert output == [prefix.format("ident") + "unexpected inference output 'SUM' for model 'ident'", "INTERNAL"]
    assert decoupled == [
        prefix.format("repeat") + "Model repeat is using the decoupled. The current BLS request call doesn't support "
        "models using the decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or "
        "'async_exec' calls for decoupled models.'",
        "INTERNAL",
    ]
    assert raised[0].startswith("Failed to process the request(s) for model 'failing_0_0', message: ValueError: no")
    assert returned == ["not here", "NOT_FOUND"]
    assert died == ["Stub process 'dying_0_0' is not healthy.", "INTERNAL"]


PASSED_ON = case("""
return [self.data(self.ask("way_through", [self.tensor(1, 2)]).exec()),
        self.data(self.ask("one", [self.tensor(1)]).exec())]
""")


def test_a_circle_of_calls_ends_in_an_error(server: Server) -> None:
    answer, error = drive(server, PASSED_ON)
    assert answer == [[1.0, 2.0]]
    assert "one" in error or "other" in error, error
    assert server.post("one", [1.0]).status == 500
    assert server.post("ident", [1.0]).data == [1.0]


def test_a_model_calls_itself_as_deep_as_it_has_instances(server: Server) -> None:
    assert server.post("recursive", [2.0]).data == [2.0]
    assert server.post("recursive", [3.0]).status == 500
    assert server.post("recursive", [1.0]).data == [1.0]


QUEUE_TIMEOUT = case("""
import threading
one = lambda number: [pb_utils.Tensor("IN", np.full((1, 1), number, np.float32))]
busy = [threading.Thread(target=self.ask("queue", one(0.5)).exec) for _ in range(3)]
for thread in busy:
    thread.start()
time.sleep(0.1)
response = self.ask("queue", one(0), timeout=1000).exec()
for thread in busy:
    thread.join()
return [response.error().message(), response.error().code().name]
""")


def test_a_call_that_waits_longer_than_its_timeout_fails(server: Server) -> None:
    text, code = drive(server, QUEUE_TIMEOUT)
    assert "Request timeout expired" in text
    assert code == "UNAVAILABLE"


@pytest.mark.parametrize("method", ["initialize(self, args)", "finalize(self)", "auto_complete_config(config)"])
def test_calls_are_for_execute_only(tmp_path: Path, method: str) -> None:
    (tmp_path / "models").mkdir()
    repository = Repository(tmp_path / "models")
    repository.add("ident")
    decorator = "@staticmethod\n" if "config" in method else ""
    call = 'pb_utils.InferenceRequest(model_name="ident", inputs=[], requested_output_names=["OUT"]).exec()'
    execute = "\ndef execute(self, requests):\n    return [respond(request, values(request)) for request in requests]\n"
    repository.add("calls", f"{decorator}def {method}:\n    {call}\n{execute}")
    text = "BLS is only supported during the 'execute' function."
    with serving(repository, tmp_path) as start:
        server = start("--exit-on-error=false")
        if "finalize" in method:
            assert server.post("calls", [1.0]).data == [1.0]
            assert server.terminate() == 0
        else:
            assert not server.ready("calls")
        assert text in server.text()


# --- several responses --------------------------------------------------------------------------------------------

STREAMS = case("""
def items(model, *numbers):
    return [self.data(response) for response in self.ask(model, [self.tensor(*numbers)]).exec(decoupled=True)]
return [items("repeat", 3), items("repeat", 0), items("repeat", 3, 0), items("ident", 5), items("failing", 2)]
""")


def test_responses_come_in_order_and_a_final_flag_alone_is_an_empty_one(server: Server) -> None:
    three = [[[0.0]], [[1.0]], [[2.0]]]
    assert drive(server, STREAMS) == [[*three, []], [[]], three, [[[5.0]]], ["not here"]]


ITERATING = case("""
def number(response):
    return response.output_tensors()[0].as_numpy()[0].item() if response.output_tensors() else None
responses = self.ask("repeat", [self.tensor(4)]).exec(decoupled=True)
assert iter(responses) is responses
taken = [number(next(responses))]
for response in responses:
    taken.append(number(response))
    break
taken += [number(next(responses))] + [number(response) for response in responses]
try:
    next(responses)
except StopIteration:
    taken.append("over")
again = [number(response) for response in responses]
responses.cancel()
unread = self.ask("repeat", [self.tensor(50)]).exec(decoupled=True)
next(unread)
del unread
return [taken, again, self.data(self.ask("repeat", [self.tensor(1, 0)]).exec(decoupled=True).__next__())]
""")


def test_iterating_resumes_ends_and_begins_again(server: Server) -> None:
    taken, again, after = drive(server, ITERATING)
    assert taken == [0.0, 1.0, 2.0, 3.0, None, "over"]
    assert again == [0.0, 1.0, 2.0, 3.0, None]
    assert after == [[0.0]]


def test_a_stream_is_forwarded_to_a_client_as_it_comes(server: Server) -> None:
    inputs = [grpc_client.InferInput("IN", [1], "FP32")]
    inputs[0].set_data_from_numpy(np.array([20], np.float32))
    received: queue.Queue[Any] = queue.Queue()
    with grpc_client.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: received.put(error or result.as_numpy("OUT")[0]))
        client.async_stream_infer("forward", inputs)
        assert [received.get(timeout=20) for _ in range(20)] == list(range(20))


CANCELLING = case("""
responses = self.ask("until_cancelled", [self.tensor(1)]).exec(decoupled=True)
first = self.data(next(responses))
responses.cancel()
responses.cancel()
begin = time.monotonic()
rest = [[response.error().message(), response.error().code().name] for response in responses]
return [first, rest, time.monotonic() - begin < 5]
""")


def test_cancelling_reaches_the_model_called(server: Server) -> None:
    first, rest, soon = drive(server, CANCELLING)
    assert (first, soon) == ([[1.0]], True)
    assert [code for _, code in rest] == ["CANCELLED"]
