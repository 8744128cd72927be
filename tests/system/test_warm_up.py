"""Models that are warmed up before they serve: what they are given, how often, and what becomes of those that fail."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.system.conftest import CONFIG, IDENTITY, Repository, Server, Start, eventually, serving
from tests.system.test_model_control import EXPLICIT, control

# Says what it gets; answers with how often it was executed before.
TELLING = """
count = 0
def execute(self, requests):
    for request in requests:
        arrays = {tensor.name(): tensor.as_numpy().tolist() for tensor in request.inputs()}
        print("EXECUTED", len(requests), request.flags(), request.correlation_id(), arrays, flush=True)
    self.count += 1
    return [respond(request, np.array([self.count - 1], np.float32)) for request in requests]
"""
FAILING = """
def execute(self, requests):
    return [pb_utils.InferenceResponse(error=pb_utils.TritonError("An Error Occurred")) for _ in requests]
"""
RAISING = """
def execute(self, requests):
    raise ValueError("boom")
"""
# Three responses to each, from a thread that begins when execute has returned.
STREAMING = """
def execute(self, requests):
    import threading
    threading.Thread(target=self.stream, args=(requests,)).start()
def stream(self, requests):
    time.sleep(0.05)
    for request in requests:
        sender = request.get_response_sender()
        for _ in range(3):
            sender.send(respond(request, values(request)))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        print("STREAMED", flush=True)
"""
LATE_FAILURE = STREAMING.replace(
    "sender.send(respond(request, values(request)))",
    "sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError('late')))",
)
COROUTINE = """
async def execute(self, requests):
    import asyncio
    await asyncio.sleep(0.01)
    print("AWAITED", flush=True)
    return [respond(request, values(request)) for request in requests]
"""
FORGETTING = """
def execute(self, requests):
    return None
"""
CALLING = """
def execute(self, requests):
    call = pb_utils.InferenceRequest(
        model_name=%r, requested_output_names=["OUT"], inputs=[pb_utils.Tensor("IN", np.ones(1, np.float32))]
    )
    response = call.exec()
    if response.has_error():
        return [pb_utils.InferenceResponse(error=response.error()) for _ in requests]
    print("CALLED", pb_utils.get_output_tensor_by_name(response, "OUT").as_numpy().tolist(), flush=True)
    return [respond(request, values(request)) for request in requests]
"""
BATCHING = CONFIG.replace("max_batch_size: 0", "max_batch_size: 4")
DECOUPLED = CONFIG % 1 + "model_transaction_policy { decoupled: true }\n"
SEQUENCES = (
    CONFIG % 1
    + """
sequence_batching { control_input [
  { name: "START" control [{ kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }] },
  { name: "END" control [{ kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] }] },
  { name: "ID" control [{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 }] } ] }
"""
)
ZERO = "zero_data: true"


def sample(
    name: str, data: str = ZERO, dims: str = "[ 2 ]", datatype: str = "FP32", size: int = 1, more: str = ""
) -> str:
    return (
        f'model_warmup {{ name: "{name}" batch_size: {size} {more} inputs {{ key: "IN" value {{ '
        f"data_type: TYPE_{datatype} dims: {dims} {data} }} }} }}\n"
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = Repository(tmp_path_factory.mktemp("models"))
    add = repository.add
    add("twice", TELLING, config=BATCHING % 2 + sample("a", size=3, more="count: 2") + sample("never", size=0))
    strings = (CONFIG % 1).replace("TYPE_FP32 dims", "TYPE_STRING dims")
    add("random", TELLING, config=CONFIG % 1 + sample("r", "random_data: true", dims="[ 64 ]"))
    strings += sample("s", "random_data: true", datatype="STRING")
    words = add("strings", TELLING, config=strings + sample("f", 'input_data_file: "words"', datatype="STRING"))
    (words.parent / "warmup").mkdir()
    (words.parent / "warmup" / "words").write_bytes(b"\3\0\0\0one\3\0\0\0two")
    add("stream", STREAMING, config=DECOUPLED + sample("d"))
    add("coroutine", COROUTINE, config=CONFIG % 1 + sample("c"))
    add("sequences", TELLING, config=SEQUENCES + sample("s"))
    add("failing", FAILING, config=BATCHING % 1 + sample("bad", size=2) + sample("next"))
    add("raising", RAISING, config=CONFIG % 1 + sample("bad"))
    add("late", LATE_FAILURE, config=DECOUPLED + sample("bad"))
    add("forgetting", FORGETTING, config=CONFIG % 1 + sample("bad"))
    add("large", IDENTITY, config=BATCHING % 1 + sample("bad", size=5))
    add("missing", IDENTITY, config=CONFIG % 1 + sample("bad", 'input_data_file: "none"'))
    short = add("short", IDENTITY, config=CONFIG % 1 + sample("bad", 'input_data_file: "data"'))
    (short.parent / "warmup").mkdir()
    (short.parent / "warmup" / "data").write_bytes(b"1234567")
    add("calls", CALLING % "random", config=CONFIG % 1 + sample("c"))
    add("self", CALLING % "self", config=CONFIG % 1 + sample("c"))
    with serving(repository, tmp_path_factory.mktemp("logs")) as start:
        yield start(EXPLICIT, "--log-verbose=1")


def load(server: Server, model: str) -> str:
    """The reason why not, "" if it serves."""
    status, error = control(server, "load", model)
    assert (status == 200) == server.ready(model)
    return error


def reason(server: Server, model: str) -> str:
    load(server, model)
    return server.index()[f"{model}:1"]["reason"]


def executed(server: Server, model: str) -> list[str]:
    return [line.split("EXECUTED ")[1] for line in server.lines("EXECUTED", f"{model}:1 ")]


def test_each_instance_is_warmed_up_before_it_serves_and_nobody_counts_it(server):
    assert load(server, "twice") == ""
    assert executed(server, "twice") == ["3 0 0 {'IN': [[0.0, 0.0]]}"] * 12
    for instance in (0, 1):
        for iteration in (1, 2):
            text = f"model 'twice' instance twice_0_{instance} is running warmup sample 'a' for iteration {iteration}"
            assert len(server.lines(text)) == 1
    assert server.lines("Skipping batch 0 warmup sample 'never'")
    (row,) = server.get("/v2/models/twice/stats").json["model_stats"]
    assert (row["inference_count"], row["execution_count"], row["last_inference"]) == (0, 0, 0)
    assert server.metric("nv_inference_request_success", "twice") == server.pending("twice") == 0
    body = b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[1,1],"data":[0]}]}'
    assert server.call("POST", "/v2/models/twice/infer", body).data == [2]


def test_random_data_is_random_and_random_strings_are_empty(server):
    assert load(server, "random") == load(server, "strings") == ""
    (array,) = executed(server, "random")
    assert len(set(array.split(","))) > 8
    assert executed(server, "strings") == ["1 0 0 {'IN': [b'', b'']}", "1 0 0 {'IN': [b'one', b'two']}"]


def test_a_stream_is_warmed_up_to_its_end(server):
    assert load(server, "stream") == ""
    assert len(server.lines("STREAMED")) == 1


def test_a_coroutine_is_awaited(server):
    assert load(server, "coroutine") == ""
    assert len(server.lines("AWAITED")) == 1


def test_a_sample_is_a_sequence_of_its_own(server):
    assert load(server, "sequences") == ""
    assert executed(server, "sequences") == ["1 3 1 {'IN': [0.0, 0.0], 'START': [1], 'END': [1], 'ID': [1]}"]


@pytest.mark.parametrize(
    "model, why",
    [
        ("failing", "failed to run warmup sample 'bad': An Error Occurred; An Error Occurred; "),
        ("late", "failed to run warmup sample 'bad': late; late; late; "),
        (
            "large",
            "failed to run warmup sample 'bad': " + "batch size 5 for 'large_0_0', max allowed is 4; " * 5,
        ),
        (
            "short",
            "[request id: <id_unknown>] warmup setting expects 8 bytes, but the data provided from data only has 7 "
            "bytes",
        ),
    ],
)
def test_a_failure_fails_the_load(server, model, why):
    assert reason(server, model) == f"Invalid argument: {why}"
    assert not server.lines(f"'{model}' instance", "sample 'next'")
    eventually(lambda: not server.stubs(model))


def test_a_failure_of_the_model_says_what_it_raised(server):
    said = reason(server, "raising")
    assert said.startswith("Invalid argument: failed to run warmup sample 'bad': Failed to process the request(s) for")
    assert "ValueError: boom" in said
    assert "failed to run warmup sample 'bad'" in reason(server, "forgetting")


def test_a_file_that_is_not_there_is_told_without_the_host_s_places(server):
    said = reason(server, "missing")
    assert said == "Internal: failed to open text file for read warmup/none: No such file or directory"


def test_it_may_call_models_that_serve_and_waits_for_none_that_does_not(server):
    assert load(server, "random") == load(server, "calls") == ""
    assert server.lines("CALLED")
    assert "Model 'self' is not ready" in reason(server, "self")


def test_an_instance_that_is_started_anew_is_warmed_up_anew(start: Start, repository: Repository):
    repository.add("m", TELLING, config=CONFIG % 1 + sample("a"))
    server = start()
    os.kill(server.stub("m").pid, signal.SIGKILL)
    eventually(lambda: len(executed(server, "m")) == 2)
    eventually(lambda: server.ready("m"))
    assert server.post("m", [0]).data == [1]
