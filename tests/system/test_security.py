"""What hostile or careless clients try: nothing leaks, nothing grows, nobody else notices."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import socket
import stat
import struct
import subprocess
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from tests.system.conftest import (
    CONFIG,
    SHM,
    Answer,
    MiB,
    Repository,
    Server,
    Start,
    binary_request,
    eventually,
    json_request,
    serving,
    together,
)

LIMIT = 64 * MiB

DIES_OR_RAISES = """
def execute(self, requests):
    what = values(requests[0])[0]
    if what == 13:
        os._exit(1)
    if what == 14:
        raise ValueError("no")
    if what == 15:
        return [respond(requests[0], np.array([chr(0xD800)], dtype=object))]
    return [respond(request, values(request)) for request in requests]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path: Path = tmp_path_factory.mktemp("security")
    (path / "models").mkdir()
    repository = Repository(path / "models")
    repository.add("ident")
    repository.add("strings", config=CONFIG.replace("TYPE_FP32", "TYPE_STRING") % 1)
    repository.add("int64", config=CONFIG.replace("TYPE_FP32", "TYPE_INT64") % 1)
    with serving(repository, path) as start:
        server = start()
        yield server
        assert server.post("ident", [1.0]).data == [1.0]
        assert "Traceback" not in server.text()


def infer(server: Server, body: bytes, headers: dict[str, str] | None = None, model: str = "ident") -> Answer:
    return server.call("POST", f"/v2/models/{model}/infer", body, headers or {})


def rss(server: Server) -> int:
    return int(psutil.Process(server.process.pid).memory_info().rss)


# --- names ------------------------------------------------------------------------------------------------------


def told_by_grpc(server: Server, model: str, array: np.ndarray[Any, Any]) -> str:
    tensor = tritonclient.grpc.InferInput("IN", list(array.shape), "FP32").set_data_from_numpy(array)
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        try:
            return str(client.infer(model, [tensor]).get_response())
        except InferenceServerException as error:
            return str(error)


def test_no_answer_names_a_segment_or_a_socket(repository: Repository, start: Start) -> None:
    repository.add("m", DIES_OR_RAISES)
    repository.add("bad", "def initialize(self, args):\n    raise ValueError('no')")
    repository.add("worse", "def initialize(self, args):\n    os._exit(1)")
    server = start("--exit-on-error=false", "--http-max-input-size=100000")
    told = []
    for value in (1.0, 14.0, 15.0, 13.0, 1.0):
        array = np.full(MiB, value, np.float32)
        told.append(infer(server, *binary_request(array), model="m").body[:10_000].decode(errors="replace"))
        told.append(server.post("m", [value]).body.decode())
        told.append(told_by_grpc(server, "m", np.array([value], np.float32)))
        told.append(told_by_grpc(server, "m", np.array([[value]], np.float32)))
    told.append(infer(server, json_request([1.5] * 100_000), model="m").body.decode())
    told.append(json.dumps(server.index()))
    told += [server.post(model, [1.0]).body.decode() for model in ("bad", "worse", "nobody")]
    assert "is not healthy" in "".join(told)
    assert "exceeds the maximum" in "".join(told)
    for text in told:
        assert str(server.temporary) not in text
        assert str(SHM) not in text
        assert not re.search(r"tensorbus-\w", text), text


def in_small_shm(nbytes: int) -> tuple[str, ...]:
    """A command that runs another where /dev/shm is a small one of its own."""
    mount = f'mount -t tmpfs -o size={nbytes} tmpfs /dev/shm && exec "$@"'
    return ("unshare", "--mount", "sh", "-c", mount, "sh")


@pytest.mark.skipif(
    subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0,
    reason="needs a mount namespace",
)
def test_where_shared_memory_is_full_tensors_travel_all_the_same(repository: Repository, start: Start) -> None:
    repository.add("m", DIES_OR_RAISES)
    server = start(wrapper=in_small_shm(4 * MiB))
    for nbytes in (1000, MiB, 8 * MiB, 40 * MiB, 1000):
        array = np.arange(nbytes // 4, dtype=np.float32)
        assert np.array_equal(server.post_binary("m", array).array, array)
    array = np.full(2 * MiB, 14, np.float32)
    answer = server.post_binary("m", array)
    assert answer.status == 500
    assert "/dev/shm" not in answer.error
    array[0] = 13
    assert server.post_binary("m", array).error == "Stub process 'm_0_0' is not healthy."
    assert server.post_binary("m", array[:0]).status in (200, 500)


TRAVERSALS = ["../outside", "..%2foutside", "%2e%2e/outside", "ident/../../outside", "/etc/passwd", "..", ".", ""]
TRAVERSALS += ["ident/", " ..", "x" * 300, "ident%00", "..\\outside", "ident/1/../../../outside"]


@pytest.mark.parametrize("name", TRAVERSALS)
@pytest.mark.parametrize("rest", ["", "/infer", "/config", "/ready", "/versions/1/infer"])
def test_no_name_leads_out_of_the_repository(server: Server, name: str, rest: str) -> None:
    with server.connect() as connection:  # as it is, without a client's tidying
        method = "POST" if rest.endswith("infer") else "GET"
        connection.sendall(f"{method} /v2/models/{name}{rest} HTTP/1.0\r\nContent-Length: 0\r\n\r\n".encode())
        status = int(connection.makefile("rb").readline().split()[1])
    assert 400 <= status < 500


def test_no_name_or_value_reaches_a_shell(repository: Repository, start: Start, tmp_path: Path) -> None:
    target = tmp_path / "touched"
    attack = f"$(touch {target.name});touch {target.name}\n`touch {target.name}`"
    config = CONFIG % 1 + f"parameters {{ key: {json.dumps(attack)} value {{ string_value: {json.dumps(attack)} }} }}"
    repository.add("ident", config=config.replace("count: 1", f"name: {json.dumps(attack)} count: 1"))
    repository.add("$(touch touched)")
    repository.add(";touch touched")
    server = start("--exit-on-error=false")
    server.post("ident", [1.0], id=attack, parameters={"a": attack})
    for folder in (tmp_path, repository.path, Path.cwd(), server.temporary):
        assert not list(folder.rglob("touched"))
    assert not Path("/touched").exists()


def test_models_cannot_be_changed_from_outside(server: Server) -> None:
    override = json.dumps({"parameters": {"config": json.dumps({"backend": "python"})}}).encode()
    for path, body in (("ident/load", b""), ("ident/load", override), ("ident/unload", b""), ("../x/load", b"")):
        answer = server.call("POST", f"/v2/repository/models/{path}", body)
        assert answer.status in (404, 503)
    assert server.ready("ident")


# --- JSON -------------------------------------------------------------------------------------------------------


def one(datatype: str, data: str, shape: str = "[1]") -> bytes:
    return f'{{"inputs":[{{"name":"IN","datatype":"{datatype}","shape":{shape},"data":{data}}}]}}'.encode()


ODD_NUMBERS = {  # either refused, or exactly this
    "5" * 5000: ("INT64", None),
    "1e400": ("FP32", None),
    "-0.0": ("FP32", -0.0),
    "9007199254740993": ("INT64", 9007199254740993),
    "-9223372036854775808": ("INT64", -(2**63)),
    "99999999999999999999": ("INT64", None),
    "1e5": ("INT64", None),
    "00012": ("INT64", None),
    "0x10": ("INT64", None),
    "1_000": ("INT64", None),
    "+1": ("FP32", None),
    ".5": ("FP32", None),
    "1.": ("FP32", None),
    "true": ("FP32", None),
    '"1"': ("FP32", None),
    "null": ("FP32", None),
}


@pytest.mark.parametrize(
    "text",
    ODD_NUMBERS,
    ids=lambda text: text[:24],
)
def test_a_number_is_exact_or_refused(server: Server, text: str) -> None:
    datatype, value = ODD_NUMBERS[text]
    answer = infer(server, one(datatype, f"[{text}]"), model="int64" if datatype == "INT64" else "ident")
    if value is None:
        assert answer.status in (400, 500), answer
        assert len(answer.error) < 1000
    else:
        assert repr(answer.data[0]) == repr(value)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_numbers_beyond_json_go_both_ways(server: Server, text: str) -> None:
    answer = infer(server, one("FP32", f"[{text}]"))
    assert answer.status == 200
    assert f'"data":[{text}]'.encode() in answer.body


BROKEN = {
    "empty object": b"{}",
    "no object": b"[]",
    "truncated": b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[1],"data":[1',
    "trailing": one("FP32", "[1]") + b"}",
    "not json": b"\x00\xff\xfe",
    "deep": b"[" * 250_000,
    "deep and closed": b'{"inputs":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep data": one("FP32", "[" * 5000 + "1" + "]" * 5000),
    "inputs of another type": b'{"inputs":"IN"}',
    "inputs of other types": b'{"inputs":[1,null,"x",[],{}]}',
    "a shape of texts": one("FP32", "[1]", '["1"]'),
    "a shape of fractions": one("FP32", "[1]", "[1.5]"),
    "no shape": b'{"inputs":[{"name":"IN","datatype":"FP32","data":[1]}]}',
    "too few elements": one("FP32", "[1]", "[2]"),
    "too many elements": one("FP32", "[1,2]", "[1]"),
    "unknown datatype": one("OBJECT", "[1]"),
    "numpy's datatypes": one("<f4", "[1]"),
    "a structured datatype": one("[('a','<f4')]", "[1]"),
    "parameters of another type": b'{"inputs":[],"parameters":[1]}',
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_request_is_refused_in_one_sentence(server: Server, what: str) -> None:
    answer = infer(server, BROKEN[what])
    assert answer.status in (400, 500), answer
    assert len(answer.error) < 1000
    assert "Traceback" not in answer.error


ODD_BUT_LEGAL = {
    "a byte order mark": b"\xef\xbb\xbf" + one("FP32", "[7]"),
    "white space": b" \t\r\n" + one("FP32", "[7]") + b" \n",
    "a duplicate key": one("FP32", "[7]")[:-1] + b',"inputs":[]}',
    "unknown members": one("FP32", "[7]")[:-1] + b',"x":{"y":[1,{}]}}',
    "nested data": one("FP32", "[[7]]"),
}


@pytest.mark.parametrize("what", ODD_BUT_LEGAL)
def test_an_odd_request_is_answered_right_or_refused(server: Server, what: str) -> None:
    answer = infer(server, ODD_BUT_LEGAL[what])
    assert answer.status in (400, 500) or answer.data == [7.0]


@pytest.mark.parametrize("text", [rb'"\ud800"', rb'"\udc00\ud800"', b'"\xff\xfe"', rb'"\u0000"', rb'"\u00"', rb'"\x"'])
def test_an_odd_text_is_answered_or_refused(server: Server, text: bytes) -> None:
    body = b'{"inputs":[{"name":"IN","datatype":"BYTES","shape":[1],"data":[' + text + b"]}]}"
    answer = infer(server, body, model="strings")
    assert answer.status in (200, 400, 500)


# --- sizes ------------------------------------------------------------------------------------------------------

SHAPES = {
    "overflow": [2**62, 4],
    "overflow by one": [2**63 - 1],
    "beyond 64 bits": [2**70],
    "negative": [-1],
    "negative twice": [-2, -2],
    "terabytes": [2**40],
    "ten thousand dimensions": [1] * 10_000,
    "zero times much": [0, 2**62],
    "thirty thousand huge dimensions": [2**62] * 30_000,
}


@pytest.mark.parametrize("what", SHAPES)
@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_a_shape_is_believed_only_as_far_as_there_is_data(server: Server, what: str, binary: bool) -> None:
    tensor: dict[str, object] = {"name": "IN", "datatype": "FP32", "shape": SHAPES[what]}
    tensor |= {"parameters": {"binary_data_size": 16}} if binary else {"data": [1, 2, 3, 4]}
    header = json.dumps({"inputs": [tensor]}).encode()
    before, began = rss(server), time.monotonic()
    headers = {"Inference-Header-Content-Length": str(len(header))} if binary else {}
    answer = infer(server, header + bytes(16 if binary else 0), headers)
    assert answer.status in (400, 500), answer
    assert time.monotonic() - began < 1.5
    assert rss(server) - before < 16 * MiB


@pytest.mark.parametrize("what", ["overflow", "negative", "terabytes", "ten thousand dimensions"])
def test_a_shape_over_grpc_is_believed_no_further(server: Server, what: str) -> None:
    tensor = tritonclient.grpc.InferInput("IN", SHAPES[what], "FP32")
    tensor._raw_content = bytes(16)
    before = rss(server)
    client = tritonclient.grpc.InferenceServerClient(server.grpc)
    with client, pytest.raises(InferenceServerException) as caught:
        client.infer("ident", [tensor])
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert rss(server) - before < 16 * MiB


def test_twenty_five_thousand_inputs_are_refused_at_once(server: Server) -> None:
    tensor = '{"name":"IN%d","datatype":"FP32","shape":[1],"data":[1]}'
    body = '{"inputs":[' + ",".join(tensor % number for number in range(25_000)) + "]}"
    began = time.monotonic()
    assert infer(server, body.encode()).status == 400
    assert time.monotonic() - began < 1.5


def test_a_long_error_of_a_model_arrives_over_grpc(repository: Repository, start: Start) -> None:
    repository.add("m", "def execute(self, requests):\n    raise ValueError('x' * 20_000)")
    server = start()
    assert "[StatusCode.INTERNAL] Failed to process" in told_by_grpc(server, "m", np.ones(1, np.float32))


@pytest.mark.parametrize("length", [0xFFFFFFFF, 0x7FFFFFFF, 5])
def test_the_length_of_a_text_is_believed_only_within_its_tensor(server: Server, length: int) -> None:
    data = struct.pack("<I", length) + b"abcd"
    body, headers = binary_request(np.frombuffer(data, np.uint8), "BYTES")
    body = body.replace(b"[8]", b"[1]", 1)
    headers["Inference-Header-Content-Length"] = str(len(body) - len(data))
    assert infer(server, body, headers, model="strings").status == 400


@pytest.mark.parametrize("value", ["-1", "99999999999999999999", "abc", "1000000", "0x10", ""])
def test_a_wrong_header_length_is_refused(server: Server, value: str) -> None:
    answer = infer(server, one("FP32", "[1]"), {"Inference-Header-Content-Length": value})
    assert answer.status == 400


@pytest.mark.parametrize("size", [-1, 0, 3, 5, 2**31, 2**63, 2**64 - 1])
def test_a_wrong_tensor_size_is_refused(server: Server, size: int) -> None:
    tensor = {"name": "IN", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": size}}
    header = json.dumps({"inputs": [tensor]}).encode()
    answer = infer(server, header + bytes(4), {"Inference-Header-Content-Length": str(len(header))})
    assert answer.status in (400, 500)


def bomb(nbytes: int) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    pieces = [packer.compress(bytes(MiB)) for _ in range(nbytes // MiB)]
    return b"".join((*pieces, packer.compress(bytes(nbytes % MiB)), packer.flush()))


@pytest.mark.parametrize("nbytes", [LIMIT + 1, 256 * MiB])
def test_a_gzip_bomb_is_inflated_no_further_than_the_limit(server: Server, nbytes: int) -> None:
    body = bomb(nbytes)
    assert len(body) < nbytes / 900
    before = rss(server)
    answer = infer(server, body, {"Content-Encoding": "gzip"})
    assert answer.status == 400
    assert "Decompressed data size exceeds the maximum allowed value" in answer.error
    peak = int(re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{server.process.pid}/status").read_text())[0]) * 1024
    assert peak - before < 3 * LIMIT
    server.post("ident", [1.0])
    assert rss(server) - before < LIMIT


COMPRESSED = one("FP32", "[7]")
ENCODINGS = {
    "gzip": ("gzip", gzip.compress(COMPRESSED), True),
    "deflate": ("deflate", zlib.compress(COMPRESSED), True),
    "identity": ("identity", COMPRESSED, True),
    "twice": ("gzip, gzip", gzip.compress(gzip.compress(COMPRESSED)), False),
    "truncated": ("gzip", gzip.compress(COMPRESSED)[:-12], False),
    "wrong checksum": ("gzip", gzip.compress(COMPRESSED)[:-8] + bytes(8), False),
    "not compressed": ("gzip", COMPRESSED, False),
    "empty": ("gzip", b"", False),
    "unknown": ("br", COMPRESSED, False),
}


@pytest.mark.parametrize("what", ENCODINGS)
def test_a_compressed_request_is_read_or_refused(server: Server, what: str) -> None:
    encoding, body, good = ENCODINGS[what]
    answer = infer(server, body, {"Content-Encoding": encoding})
    if good:
        assert answer.data == [7.0]
    else:
        assert 400 <= answer.status <= 501, answer
        assert answer.error


# --- connections ------------------------------------------------------------------------------------------------


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("leave", [reset, socket.socket.close], ids=["reset", "close"])
def test_clients_that_go_away_at_any_time_do_no_harm(repository: Repository, start: Start, leave: Any) -> None:
    repository.add("ident")
    server = start()
    body, headers = binary_request(np.ones(2 * MiB, np.float32))
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    request = f"POST /v2/models/ident/infer HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    server.post_binary("ident", np.ones(2 * MiB, np.float32))
    descriptors = server.descriptors()

    def go_away(sent: int, read: int) -> None:
        connection = server.connect()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(request[:sent])
        if read:
            connection.recv(read)
        leave(connection)

    half = len(request) // 2
    stages = [(0, 0), (10, 0), (100, 0), (half, 0), (len(request) - 1, 0), (len(request), 0), (len(request), 1)]
    together(4, [lambda s=stage: go_away(*s) for stage in stages * 18])  # type: ignore[misc]
    assert server.post("ident", [1.0]).data == [1.0]
    eventually(lambda: server.descriptors() <= descriptors + 2, 10, "connections are closed")
    eventually(lambda: server.pending("ident") == 0)
    assert len(together(4, [lambda: server.post_binary("ident", np.ones(2 * MiB, np.float32)).array] * 8)) == 8
    assert server.shm_bytes() < 256 * MiB  # of some 600 MiB that were sent and not answered
    assert server.stub("ident").is_running()
    assert "Traceback" not in server.text()


GARBAGE = [
    b"\x00" * 100,
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"POST /v2/models/ident/infer HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
    b"POST /v2/models/ident/infer HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
    b"POST /v2/models/ident/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_what_is_no_http_ends_its_own_connection_only(server: Server, garbage: bytes) -> None:
    with server.connect() as connection:
        try:
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.makefile("rb").read()
        except ConnectionError:
            answer = b""
    assert not answer or (answer.startswith(b"HTTP/1.") and b" 200 " not in answer.splitlines()[0])
    assert server.post("ident", [1.0]).data == [1.0]


ENDLESS = {
    "many headers": (b"GET / HTTP/1.1\r\n", b"X-Padding: " + b"a" * MiB + b"\r\n"),
    "one header": (b"GET / HTTP/1.1\r\nX-Padding: ", b"a" * MiB),
    "the path": (b"GET /", b"a" * MiB),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_an_endless_header_costs_no_memory(repository: Repository, start: Start, what: str) -> None:
    repository.add("ident")
    server = start()
    begin, more = ENDLESS[what]
    before = rss(server)
    with server.connect() as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(begin)
            for _ in range(40):
                connection.sendall(more)
        assert server.post("ident", [1.0]).data == [1.0]
        assert rss(server) - before < 32 * MiB


def test_a_body_that_is_only_announced_costs_no_memory(repository: Repository, start: Start) -> None:
    repository.add("ident")
    server = start()
    head = b"POST /v2/models/ident/infer HTTP/1.1\r\nInference-Header-Content-Length: 100\r\n"
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            connection = stack.enter_context(server.connect())
            connection.sendall(head + b"Content-Length: 268435456\r\n\r\n{")
        assert server.post("ident", [1.0]).data == [1.0]
        assert server.shm_bytes() < 300 * MiB


# --- what the host sees -----------------------------------------------------------------------------------------


def test_only_the_three_ports_listen_and_the_bus_is_a_private_file(server: Server) -> None:
    listening, unix = set(), set()
    for process in server.processes():
        for found in process.net_connections("inet"):
            if found.status == psutil.CONN_LISTEN:
                listening.add(f"{found.laddr.ip.removeprefix('::ffff:')}:{found.laddr.port}")
        unix |= {found.laddr for found in process.net_connections("unix") if found.laddr}
    assert listening == {server.http, server.grpc, server.metrics_url.split("/")[2]}
    (run_dir,) = server.temporary.iterdir()
    assert unix == {str(run_dir / "bus")}
    assert stat.S_IMODE(run_dir.stat().st_mode) == 0o700


def test_nobody_else_may_read_or_write_its_files(repository: Repository, start: Start) -> None:
    repository.add("ident")
    log = repository.path.parent / "the.log"
    server = start(f"--log-file={log}", wrapper=("sh", "-c", 'umask 0; exec "$@"', "sh"), wait=False)
    server.log = log
    server.wait_ready()
    server.post("ident", [1.0] * 1000)
    segments = server.shm()
    assert len(segments) >= 2
    assert {stat.S_IMODE((SHM / name).stat().st_mode) for name in segments} == {0o600}
    (run_dir,) = server.temporary.iterdir()
    assert stat.S_IMODE(run_dir.stat().st_mode) == 0o700
    assert log.stat().st_mode & 0o022 == 0


def test_names_of_clients_make_no_metrics(server: Server) -> None:
    server.post("ident", [1.0])
    before = {line.split(" ")[0] for line in server.exposition()}
    jobs = []
    for number in range(500):
        name = f"random{number}"
        jobs.append(lambda name=name: server.post(name, [1.0]))
        jobs.append(lambda name=name: server.post("ident", [1.0], id=name, parameters={name: name}))
        jobs.append(lambda n=number: server.get(f"/v2/models/ident/versions/{n + 2}"))
    statuses = [answer.status for answer in together(4, jobs)]
    assert set(statuses) == {200, 404}
    assert {line.split(" ")[0] for line in server.exposition()} == before


def test_labels_of_odd_models_are_escaped(repository: Repository, start: Start) -> None:
    odd, tag = "a na me,\u00e9=", 'we"ird\\na\nlabel'
    tags = 'metric_tags { key: "team" value: "we\\"ird\\\\na\\nlabel" }'
    repository.add(odd, config=CONFIG % 1 + tags)
    server = start()
    text = "\n".join(server.exposition()) + "\n"
    labels = [sample.labels for family in text_string_to_metric_families(text) for sample in family.samples]
    assert {(one["model"], one["_team"]) for one in labels if "model" in one} == {(odd, tag)}


def test_nothing_is_unpickled(repository: Repository, start: Start, tmp_path: Path) -> None:
    """An audit hook in every process of the server raises where a pickle would be read."""
    folder = tmp_path / "site"
    folder.mkdir()
    hook = """
import sys

def refuse(event, args):
    if event in ("pickle.find_class", "marshal.loads") and "importlib" not in sys._getframe(1).f_code.co_filename:
        raise RuntimeError(event)

sys.addaudithook(refuse)
print("hooked", flush=True)
"""
    (folder / "sitecustomize.py").write_text(hook.replace(', "marshal.loads"', ""))
    repository.add("m", DIES_OR_RAISES)
    server = start(environ={"PYTHONPATH": str(folder)})
    assert len(server.lines("hooked")) >= 2
    assert server.post("m", [1.0]).data == [1.0]
    assert server.post("m", [13.0]).status == 500
    assert "no" in server.post("m", [14.0]).error
    assert np.array_equal(server.post_binary("m", np.ones(MiB, np.float32)).array, np.ones(MiB, np.float32))
    assert "RuntimeError" not in server.text()
