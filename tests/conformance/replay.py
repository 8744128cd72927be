"""Sends one case to a server and returns its answers as plain JSON values, fit to be compared and recorded.

What must differ between two servers (paths, ports, times, the server's version) is replaced here and nowhere else.
"""

from __future__ import annotations

import gzip
import json
import re
import socket
import time
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPException, HTTPResponse
from typing import Any, NamedTuple

import grpc
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from tests.conformance.requests import JSON_LENGTH, Burst, Case, Http, Rpc, Scrape, Step, Stream, http

TIMEOUT_S = 10.0
SETTLE_S = 0.1
ARRIVE_S = 0.15  # until a request is executed
OVERTAKES_S = 0.1  # a request that is answered by so much earlier than one before it
Answer = dict[str, Any]

# Each is (what differs, what stands for it). The texts may be JSON within JSON, so quotes may be escaped.
_SUBSTITUTES = (
    (r'(\\*"version\\*": ?\\*")\d+\.\d+\.\d+[^"\\]*', r"\1<version>"),
    (r'("ns": ?)\d+', r"\g<1>0"),
    (r'("last_inference": ?)[1-9]\d*', r"\g<1>1"),
    # Wording and position are best effort; the words for too few elements changed after 2.51.
    (r"(request JSON buffer: ).* at \d+", r"\1<reason> at <offset>"),
    (
        r"((Unable to parse|Failed to parse) 'data'( field)?: )+[Ss]hape does not match true shape( of 'data' field)?",
        "<shape does not match true shape>",
    ),
    # Frames of the import system and of the library depend on the model's interpreter and on how the library is made.
    (r"(?:\\n|\n)  (<frozen importlib|[^\n\\]*/triton_python_backend_utils\.py)[^\n\\]*", ""),
)


class Address(NamedTuple):
    """Where a server under test listens, and the repository it serves (as it may appear in texts)."""

    http_port: int
    grpc_port: int
    metrics_port: int
    repository: str


class Ended(Exception):
    """The server has gone while it was asked."""


class Replayer:
    """Replays cases against one server. Holds one gRPC channel; HTTP gets a new connection for each request."""

    def __init__(self, address: Address) -> None:
        self._address = address
        options = [("grpc.max_receive_message_length", -1)]
        self._channel = grpc.insecure_channel(f"127.0.0.1:{address.grpc_port}", options)
        self._service = GRPCInferenceServiceStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def check(self) -> None:
        """Raises Ended where nobody listens any more."""
        try:
            socket.create_connection(("127.0.0.1", self._address.http_port), TIMEOUT_S).close()
        except ConnectionError:
            raise Ended("nobody listens any more") from None

    def answers(self, case: Case) -> list[Answer]:
        return [
            self._normalised(self._settled(step) if reads_figures(step) else self._answer(step)) for step in case.steps
        ]

    def _settled(self, step: Step) -> Answer:
        """The real Triton counts a request after it has answered it: asks until nothing changes any more."""
        answer, before = self._answer(step), None
        end = time.monotonic() + TIMEOUT_S
        while answer != before or "UNLOADING" in answer.get("body", ""):
            if time.monotonic() > end:
                raise TimeoutError(f"nothing settles: {answer}")
            time.sleep(SETTLE_S)
            answer, before = self._answer(step), answer
        return answer

    def _answer(self, step: Step) -> Answer:
        if isinstance(step, Http):
            return send_http(self._address.http_port, step)
        if isinstance(step, Rpc):
            return self._call(step)
        if isinstance(step, Stream):
            return self._stream(step)
        if isinstance(step, Burst):
            return self._burst(step)
        return scrape(self._address.metrics_port, step)

    def _call(self, step: Rpc) -> Answer:
        try:
            method = getattr(self._service, step.method)
            response = method(step.request, metadata=step.metadata, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            return {"code": error.code().name, "message": error.details()}
        return {"code": "OK", "response": MessageToDict(response, preserving_proto_field_name=True)}

    def _stream(self, step: Stream) -> Answer:
        responses: list[Any] = []
        answer: Answer = {"code": "OK", "responses": responses}
        try:
            call = self._service.ModelStreamInfer(iter(step.requests), metadata=step.metadata, timeout=TIMEOUT_S)
            responses.extend(MessageToDict(response, preserving_proto_field_name=True) for response in call)
        except grpc.RpcError as error:
            answer.update(code=error.code().name, message=error.details())
        return answer

    def _burst(self, step: Burst) -> Answer:
        answered_s: dict[int, float] = {}
        futures: list[Future[Answer]] = []
        with ThreadPoolExecutor(len(step.requests)) as pool:
            for number, request in enumerate(step.requests):
                futures.append(pool.submit(self._timed, request, number, answered_s))
                if number < step.executing:
                    time.sleep(ARRIVE_S)
                else:
                    self._wait_until_pending(step, futures)
        answer: Answer = {"answers": [future.result() for future in futures]}
        if step.ordered:
            late = [time_s - OVERTAKES_S for _, time_s in sorted(answered_s.items())]
            answer["overtaking"] = [number for number, time_s in answered_s.items() if time_s < max(late[: number + 1])]
        return answer

    def _timed(self, request: Http, number: int, answered_s: dict[int, float]) -> Answer:
        answer = send_http(self._address.http_port, request)
        answered_s[number] = time.monotonic()
        return answer

    def _wait_until_pending(self, step: Burst, futures: list[Future[Answer]]) -> None:
        """Those that are not answered already."""
        end = time.monotonic() + TIMEOUT_S
        while self._pending(step.model) < sum(not future.done() for future in futures) - step.executing:
            if time.monotonic() > end:
                raise TimeoutError(f"{step.model}: request {len(futures)} does not wait: {futures}")
            time.sleep(0.002)

    def _pending(self, model: str) -> int:
        # The real server's page does not answer at times, least of all under load.
        page = send_http(self._address.metrics_port, http("GET", "/metrics")).get("body", "")
        found = re.search(rf'^nv_inference_pending_request_count{{model="{model}",[^}}]*}} (\d+)', page, re.MULTILINE)
        return int(found[1]) if found else 0

    def _normalised(self, answer: Answer) -> Answer:
        text = json.dumps(answer).replace(self._address.repository, "<repository>")
        normalised: Answer = json.loads(text, object_hook=_substitute)
        return normalised


def _substitute(value: dict[str, Any]) -> dict[str, Any]:
    """The strings that are whole documents or messages are substituted as text, the figures of gRPC by name."""
    value.pop("ns", None)
    for key, item in value.items():
        if isinstance(item, str):
            value[key] = _substituted_text(key, item)
    return value


def _substituted_text(key: str, text: str) -> str:
    if key == "last_inference":
        return "1"
    if key == "version" and re.fullmatch(r"\d+\.\d+\.\d+.*", text):
        return "<version>"
    for pattern, replacement in _SUBSTITUTES:
        text = re.sub(pattern, replacement, text)
    return text


def reads_figures(step: Step) -> bool:
    """Statistics or metrics of a model, or the index, where one that is unloading says so for a while."""
    if isinstance(step, Http):
        return "/stats HTTP" in step.head or "/index HTTP" in step.head
    return isinstance(step, Scrape) or (isinstance(step, Rpc) and step.method == "ModelStatistics")


# --- HTTP -------------------------------------------------------------------------------------------------------


def send_http(port: int, step: Http) -> Answer:
    """Status, the headers that matter and the body: text, or JSON text and binary part where a header tells so."""
    try:
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
            connection.sendall(step.head.encode("latin-1") + step.body)
            method = step.head.split(" ", 1)[0]
            response = HTTPResponse(connection, method=method)
            response.begin()
            body = response.read()
    except TimeoutError:
        return {"status": "no answer"}
    except (HTTPException, ConnectionError):
        return {"status": "closed"}
    return _http_answer(response, body)


def _http_answer(response: HTTPResponse, body: bytes) -> Answer:
    answer: Answer = {"status": response.status}
    encoding = response.headers.get("Content-Encoding")
    if encoding:
        answer["encoding"] = encoding
        body = gzip.decompress(body) if encoding == "gzip" else zlib.decompress(body)
    if response.status == 200 and body:
        # Of errors only the body counts: Triton labels some of them text/plain.
        answer["type"] = response.headers.get("Content-Type")
    length = response.headers.get(JSON_LENGTH)
    if length is not None:
        answer["binary"] = body[int(length) :].hex()
        body = body[: int(length)]
    answer["body"] = body.decode("utf-8", "surrogateescape")  # BYTES in JSON need not be UTF-8
    return answer


def scrape(port: int, step: Scrape) -> Answer:
    answer = send_http(port, http(step.method, step.path))
    if answer.get("body") and step.model:
        lines = [
            line for line in answer["body"].splitlines() if f'model="{step.model}"' in line and line.startswith("nv_")
        ]
        answer["body"] = "\n".join(sorted(line for line in lines if "duration" not in line))
    return answer
