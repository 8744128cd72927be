"""Triton's own clients, unmodified: http, http.aio, grpc and grpc.aio."""

from __future__ import annotations

import asyncio
import inspect
import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

from tests.system.conftest import Repository, Server, serving, together

MODULES: dict[str, ModuleType] = {
    "http": tritonclient.http,
    "http.aio": tritonclient.http.aio,
    "grpc": tritonclient.grpc,
    "grpc.aio": tritonclient.grpc.aio,
}

ARRAYS: dict[str, np.ndarray[Any, Any]] = {
    "BOOL": np.array([[True, False]]),
    "UINT8": np.array([[0, 255]], np.uint8),
    "UINT16": np.array([[0, 65535]], np.uint16),
    "UINT32": np.array([[0, 2**32 - 1]], np.uint32),
    "UINT64": np.array([[0, 2**64 - 1]], np.uint64),
    "INT8": np.array([[-128, 127]], np.int8),
    "INT16": np.array([[-(2**15), 2**15 - 1]], np.int16),
    "INT32": np.array([[-(2**31), 2**31 - 1]], np.int32),
    "INT64": np.array([[-(2**63), 2**63 - 1]], np.int64),
    "FP16": np.array([[1.5, -np.inf]], np.float16),
    "FP32": np.array([[1.5, np.nan]], np.float32),
    "FP64": np.array([[1e300, -0.0]], np.float64),
    "BF16": np.array([[1.5, -2.0]], ml_dtypes.bfloat16),
    "BYTES": np.array([[b"a\x00b", b""]], dtype=object),
}
CONFIG_NAMES = {"BYTES": "TYPE_STRING"}

ECHO = """
def execute(self, requests):
    answers = []
    for request in requests:
        given = request.inputs()
        outputs = [pb_utils.Tensor.from_dlpack("OUT_" + t.name()[3:], t) if t.name() == "IN_BF16"
                   else pb_utils.Tensor("OUT_" + t.name()[3:], t.as_numpy()) for t in given]
        answers.append(pb_utils.InferenceResponse(outputs))
    return answers
"""

TWO = """
def execute(self, requests):
    answers = []
    for request in requests:
        value = values(request)
        if value[0] == 13:
            error = pb_utils.TritonError("unlucky", pb_utils.TritonError.UNAVAILABLE)
            answers.append(pb_utils.InferenceResponse(error=error))
            continue
        if value[0] == 14:
            raise ValueError("broken inside")
        tensors = [pb_utils.Tensor("SUM", value + value), pb_utils.Tensor("SQUARE", value * value)]
        answers.append(pb_utils.InferenceResponse(tensors))
    return answers
"""
TWO_CONFIG = """
backend: "python"
max_batch_size: 8
input [{ name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }]
output [{ name: "SUM" data_type: TYPE_FP32 dims: [ 1 ] }, { name: "SQUARE" data_type: TYPE_FP32 dims: [ 1 ] }]
"""
SLOW = """
def execute(self, requests):
    time.sleep(float(values(requests[0])[0]))
    return [respond(request, values(request)) for request in requests]
"""


def echo_config() -> str:
    def tensors(prefix: str, more: str) -> str:
        rows = [
            f'{{ name: "{prefix}_{name}" data_type: {CONFIG_NAMES.get(name, "TYPE_" + name)} dims: [ -1, -1 ] {more} }}'
            for name in ARRAYS
        ]
        return ",\n".join(rows)

    return f'backend: "python"\ninput [{tensors("IN", "optional: true")}]\noutput [{tensors("OUT", "")}]\n'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path: Path = tmp_path_factory.mktemp("clients")
    (path / "models").mkdir()
    repository = Repository(path / "models")
    repository.add("echo", ECHO, config=echo_config())
    repository.add("two", TWO, config=TWO_CONFIG)
    repository.add("slow", SLOW)
    with serving(repository, path) as start:
        yield start()


class Client:
    """Any of the four, called without awaiting."""

    def __init__(self, kind: str, server: Server) -> None:
        self.kind = kind
        self.module: ModuleType = MODULES[kind]
        self.is_grpc = kind.startswith("grpc")
        self._loop = asyncio.new_event_loop()
        self._client = self._run(self._make, server.grpc if self.is_grpc else server.http)

    async def _make(self, url: str) -> Any:
        return self.module.InferenceServerClient(url)

    def _run(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        return self._loop.run_until_complete(result) if inspect.isawaitable(result) else result

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: self._run(getattr(self._client, name), *args, **kwargs)

    def all_at_once(self, calls: list[tuple[Any, ...]], **kwargs: Any) -> list[Any]:
        """``infer`` with each of the arguments, at the same time."""
        if self.kind.endswith("aio"):

            async def gathered() -> list[Any]:
                return list(await asyncio.gather(*[self._client.infer(*call, **kwargs) for call in calls]))

            return self._loop.run_until_complete(gathered())
        if self.kind == "http":
            with tritonclient.http.InferenceServerClient(self._client._parsed_url.netloc, concurrency=8) as client:
                return [running.get_result() for running in [client.async_infer(*call, **kwargs) for call in calls]]
        results: queue.Queue[tuple[Any, Any]] = queue.Queue()
        for call in calls:
            self._client.async_infer(*call, callback=lambda result, error: results.put((result, error)), **kwargs)
        found = [results.get(timeout=30) for _ in calls]
        assert [error for _, error in found if error is not None] == []
        return [result for result, _ in found]

    def input(self, name: str, array: np.ndarray[Any, Any], datatype: str = "FP32", **options: Any) -> Any:
        tensor = self.module.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array, **options)
        return tensor

    def fp32(self, value: float) -> Any:
        return self.input("IN", np.array([[value]], np.float32))

    def json(self, name: str, *args: Any) -> Any:
        """A dictionary, whichever client it is."""
        return self._run(getattr(self._client, name), *args, **({"as_json": True} if self.is_grpc else {}))

    def close(self) -> None:
        self._run(self._client.close)
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


@pytest.fixture(params=MODULES)
def client(request: pytest.FixtureRequest, server: Server) -> Iterator[Client]:
    client = Client(request.param, server)
    yield client
    client.close()


def refused(client: Client, code: str, status: str, call: Callable[[], Any]) -> str:
    """The message of the exception that ``call`` raises; of HTTP ``status``, of gRPC ``code``."""
    with pytest.raises(InferenceServerException) as caught:
        call()
    assert caught.value.status() == (f"StatusCode.{code}" if client.is_grpc else status)
    return str(caught.value.message())


# --- everything but inference -----------------------------------------------------------------------------------


def test_health(client: Client) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("two")
    assert client.is_model_ready("two", "1")


def test_metadata(client: Client) -> None:
    metadata = client.json("get_server_metadata")
    assert metadata["name"] == "triton"
    assert "statistics" in metadata["extensions"]
    metadata = client.json("get_model_metadata", "two")
    assert metadata["versions"] == ["1"]
    assert metadata["platform"] == "python"
    assert [tensor["name"] for tensor in metadata["outputs"]] == ["SUM", "SQUARE"]
    assert [[int(n) for n in tensor["shape"]] for tensor in metadata["inputs"]] == [[-1, 1]]


def test_configuration(client: Client) -> None:
    config = client.json("get_model_config", "two")
    config = config.get("config", config)
    assert config["max_batch_size"] == 8
    assert config["instance_group"][0]["kind"] == "KIND_CPU"
    assert [tensor["data_type"] for tensor in config["output"]] == ["TYPE_FP32", "TYPE_FP32"]


def test_statistics(client: Client) -> None:
    def counts() -> tuple[int, int, int]:
        (row,) = client.json("get_inference_statistics", "two")["model_stats"]
        success = int(row["inference_stats"].get("success", {}).get("count", 0))
        return success, int(row.get("inference_count", 0)), int(row.get("execution_count", 0))

    before = counts()
    client.infer("two", [client.input("IN", np.ones((3, 1), np.float32))])
    assert [after - earlier for after, earlier in zip(counts(), before, strict=True)] == [1, 3, 1]
    rows = client.json("get_inference_statistics")["model_stats"]
    assert [row["name"] for row in rows] == ["echo", "slow", "two"]


def test_repository_index(client: Client) -> None:
    rows = client.json("get_model_repository_index")
    rows = rows["models"] if client.is_grpc else rows
    assert [(row["name"], row["version"], row["state"]) for row in rows] == [
        (name, "1", "READY") for name in ("echo", "slow", "two")
    ]


def test_what_is_not_offered_is_refused_in_words(client: Client) -> None:
    message = refused(client, "UNAVAILABLE", "503", lambda: client.load_model("two"))
    assert message == "explicit model load / unload is not allowed if polling is enabled"
    message = refused(client, "UNIMPLEMENTED", "501", lambda: client.register_system_shared_memory("r", "/r", 64))
    assert message == ("Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.")


# --- inference --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("datatype", ARRAYS)
def test_every_datatype_comes_back_as_it_was_sent(client: Client, datatype: str) -> None:
    sent = ARRAYS[datatype]
    result = client.infer("echo", [client.input("IN_" + datatype, sent, datatype)])
    received = result.as_numpy("OUT_" + datatype)
    assert received.dtype == sent.dtype
    assert received.shape == sent.shape
    assert received.tobytes() == sent.tobytes() if datatype != "BYTES" else received.tolist() == sent.tolist()


def test_all_datatypes_in_one_request(client: Client) -> None:
    inputs = [client.input("IN_" + datatype, array, datatype) for datatype, array in ARRAYS.items()]
    result = client.infer("echo", inputs)
    for datatype, array in ARRAYS.items():
        assert np.array_equal(result.as_numpy("OUT_" + datatype), array, equal_nan=datatype in ("FP32", "FP64"))


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (2, 0)])
def test_empty_tensors(client: Client, shape: tuple[int, int]) -> None:
    result = client.infer("echo", [client.input("IN_FP32", np.zeros(shape, np.float32))])
    assert result.as_numpy("OUT_FP32").shape == shape


@pytest.mark.parametrize("kind", ["http", "http.aio"])
@pytest.mark.parametrize("binary", [True, False])
def test_json_and_binary_tensors_of_one_request(server: Server, kind: str, binary: bool) -> None:
    client = Client(kind, server)
    inputs = [client.input("IN_INT32", ARRAYS["INT32"], "INT32", binary_data=binary)]
    inputs.append(client.input("IN_BYTES", ARRAYS["BYTES"], "BYTES", binary_data=not binary))
    outputs = [client.module.InferRequestedOutput("OUT_INT32", binary_data=not binary)]
    outputs.append(client.module.InferRequestedOutput("OUT_BYTES", binary_data=binary))
    result = client.infer("echo", inputs, outputs=outputs)
    assert result.as_numpy("OUT_INT32").tolist() == ARRAYS["INT32"].tolist()
    found = [value if isinstance(value, bytes) else value.encode() for value in result.as_numpy("OUT_BYTES").flat]
    assert found == list(ARRAYS["BYTES"].flat)
    client.close()


def test_only_requested_outputs_come_back(client: Client) -> None:
    output = client.module.InferRequestedOutput("SQUARE")
    result = client.infer("two", [client.fp32(3)], outputs=[output], request_id="mine")
    assert result.as_numpy("SQUARE").tolist() == [[9]]
    assert result.as_numpy("SUM") is None
    response = result.get_response()
    assert (response.id if client.is_grpc else response["id"]) == "mine"
    assert (response.model_version if client.is_grpc else response["model_version"]) == "1"


def test_many_calls_at_once_find_their_answers(client: Client) -> None:
    calls = [("two", [client.fp32(100 + number)]) for number in range(64)]
    results = client.all_at_once(calls)
    assert sorted(result.as_numpy("SUM").item() for result in results) == [200 + 2 * number for number in range(64)]


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compression(client: Client, algorithm: str) -> None:
    options = {"request_compression_algorithm": algorithm, "response_compression_algorithm": algorithm}
    if client.is_grpc:
        options = {"compression_algorithm": algorithm}
    array = np.zeros((8, 1), np.float32)
    assert client.infer("two", [client.input("IN", array)], **options).as_numpy("SUM").shape == (8, 1)


def test_parameters_are_accepted(client: Client) -> None:
    parameters = {"text": "a", "number": 3, "flag": True}
    result = client.infer("two", [client.fp32(1)], parameters=parameters, priority=0, timeout=1_000_000)
    assert result.as_numpy("SUM").tolist() == [[2]]


# --- errors -----------------------------------------------------------------------------------------------------


def test_an_unknown_model(client: Client) -> None:
    message = refused(client, "NOT_FOUND", "404", lambda: client.infer("nobody", [client.fp32(1)]))
    assert message == "Request for unknown model: 'nobody' is not found"
    message = refused(client, "NOT_FOUND", "404", lambda: client.infer("two", [client.fp32(1)], model_version="9"))
    assert message == "Request for unknown model: 'two' version 9 is not found"


def test_a_wrong_shape(client: Client) -> None:
    wrong = client.input("IN", np.zeros((1, 2), np.float32))
    message = refused(client, "INVALID_ARGUMENT", "400", lambda: client.infer("two", [wrong], request_id="mine"))
    assert message.startswith(
        "[request id: mine] unexpected shape for input 'IN' for model 'two'. Expected [-1,1], got"
    )


def test_a_batch_that_is_too_large(client: Client) -> None:
    wrong = client.input("IN", np.zeros((9, 1), np.float32))
    message = refused(client, "INVALID_ARGUMENT", "400", lambda: client.infer("two", [wrong]))
    assert "batch-size must be <= 8 for 'two'" in message


def test_an_unknown_output(client: Client) -> None:
    output = client.module.InferRequestedOutput("CUBE")
    call = lambda: client.infer("two", [client.fp32(1)], outputs=[output])  # noqa: E731
    assert "unexpected inference output 'CUBE' for model 'two'" in refused(client, "INVALID_ARGUMENT", "400", call)


def test_an_error_of_the_model_keeps_its_code(client: Client) -> None:
    assert refused(client, "UNAVAILABLE", "503", lambda: client.infer("two", [client.fp32(13)])) == "unlucky"


def test_an_exception_of_the_model_comes_with_its_place(client: Client) -> None:
    message = refused(client, "INTERNAL", "500", lambda: client.infer("two", [client.fp32(14)]))
    assert message.startswith("Failed to process the request(s) for model 'two_0', message: ValueError: broken inside")
    assert "model.py(" in message


def test_a_call_beyond_its_deadline(server: Server) -> None:
    for kind in ("grpc", "grpc.aio"):
        client = Client(kind, server)
        inputs = [client.input("IN", np.array([0.5], np.float32))]
        call = lambda: client.infer("slow", inputs, client_timeout=0.05)  # noqa: B023, E731
        assert refused(client, "DEADLINE_EXCEEDED", "", call) == "Deadline Exceeded"
        client.close()


def test_a_call_that_is_cancelled(server: Server) -> None:
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        tensor = tritonclient.grpc.InferInput("IN", [1], "FP32").set_data_from_numpy(np.array([0.3], np.float32))
        answers: queue.Queue[Any] = queue.Queue()
        for _ in range(2):
            call = client.async_infer("slow", [tensor], lambda result, error: answers.put(error))
        call.cancel()
        errors = [answers.get(timeout=10) for _ in range(2)]
    assert sorted(str(error.status()) for error in errors if error) == ["StatusCode.CANCELLED"]


# --- streams ----------------------------------------------------------------------------------------------------


def test_a_stream_answers_in_order_and_goes_on_after_an_error(server: Server) -> None:
    values = [1.0, 13.0, 2.0, 14.0, 3.0]
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number, value in enumerate(values):
            tensor = tritonclient.grpc.InferInput("IN", [1, 1], "FP32")
            tensor.set_data_from_numpy(np.array([[value]], np.float32))
            client.async_stream_infer("two", [tensor], request_id=str(number))
        found = [answers.get(timeout=10) for _ in values]
        client.stop_stream()
    check_stream(found)


def test_an_asynchronous_stream(server: Server) -> None:
    async def requests() -> Any:
        for number, value in enumerate([1.0, 13.0, 2.0, 14.0, 3.0]):
            tensor = tritonclient.grpc.aio.InferInput("IN", [1, 1], "FP32")
            tensor.set_data_from_numpy(np.array([[value]], np.float32))
            yield {"model_name": "two", "inputs": [tensor], "request_id": str(number)}

    async def stream() -> list[tuple[Any, Any]]:
        async with tritonclient.grpc.aio.InferenceServerClient(server.grpc) as client:
            return [answer async for answer in client.stream_infer(requests())]

    check_stream(asyncio.run(stream()))


def check_stream(found: list[tuple[Any, Any]]) -> None:
    assert [None if error is None else error.message()[:16] for _, error in found] == [
        None,
        "unlucky",
        None,
        "Failed to proces",
        None,
    ]
    results = [(result.get_response().id, result.as_numpy("SUM").item()) for result, error in found if error is None]
    assert results == [("0", 2.0), ("2", 4.0), ("4", 6.0)]


def test_many_streams_at_once(server: Server) -> None:
    def stream(base: int) -> list[float]:
        answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
            client.start_stream(lambda result, error: answers.put((result, error)))
            for number in range(20):
                tensor = tritonclient.grpc.InferInput("IN", [1, 1], "FP32")
                tensor.set_data_from_numpy(np.array([[base + number]], np.float32))
                client.async_stream_infer("two", [tensor])
            return [answers.get(timeout=20)[0].as_numpy("SUM").item() for _ in range(20)]

    streams = together(8, [lambda base=base: stream(base) for base in range(100, 900, 100)])  # type: ignore[misc]
    assert streams == [[2.0 * (base + number) for number in range(20)] for base in range(100, 900, 100)]
