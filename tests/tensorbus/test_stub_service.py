"""A stub host as a process, real stubs, and a broker by hand at the other end of a real socket."""

from __future__ import annotations

import http.client
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from protocol.codec import encode
from protocol.errors import ErrorKind
from protocol.messages import EXECUTE, Call, Execute, Goodbye, Handle, Hello, Results
from protocol.services import (
    DISMISSED,
    FETCH,
    REFUSED,
    START,
    TO_STUBS,
    Died,
    Dismissed,
    Environment,
    Fetch,
    Fetched,
    Join,
    Leave,
    Refused,
    Start,
    ToStubs,
)
from tests.stub.bare_broker import write_model
from tests.system.forked import Forked
from tests.tensorbus.bare_stub_broker import NONCE, BareStubBroker

SHM = "/dev/shm"
DEADLINE_S = 30
THEIRS = Path("/theirs/models")  # where the broker has its repository
SLOW = """
def execute(self, requests):
    path = os.path.join(os.path.dirname(__file__), "go")
    open(path + ".in", "w").close()
    while not os.path.exists(path):
        time.sleep(0.005)
    return [self.answer(pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()) for request in requests]
"""
CALLS = """
def execute(self, requests):
    tensor = pb_utils.get_input_tensor_by_name(requests[0], "IN")
    answer = pb_utils.InferenceRequest(model_name="other", requested_output_names=["OUT"], inputs=[tensor]).exec()
    error = answer.error()
    return [pb_utils.InferenceResponse(error=pb_utils.TritonError(error.message() + "!", error.code()))]
"""
STREAMS = """
def execute(self, requests):
    self.sender = requests[0].get_response_sender()
    self.array = pb_utils.get_input_tensor_by_name(requests[0], "IN").as_numpy()
    threading.Thread(target=self.later).start()
def later(self):
    while not os.path.exists(os.path.join(os.path.dirname(__file__), "go")):
        time.sleep(0.005)
    self.sender.send(self.answer(self.array), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


class Host:
    def __init__(self, directory: Path, log: Path) -> None:
        self.models = directory / "models"
        self.models.mkdir()
        self._log = log
        self._directory = directory
        self.process: Forked | None = None

    def start(self, broker: str, *flags: str) -> None:
        command = ["stub", f"--broker={broker}", "--metrics-port=0", *flags, f"--model-repository={self.models}"]
        with self._log.open("ab") as log:
            self.process = Forked(command, log, {**os.environ, "TMPDIR": str(self._directory)})

    @property
    def log(self) -> str:
        return self._log.read_text()

    def run_directories(self) -> list[Path]:
        return list(self._directory.glob("tensorbus-*"))

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(DEADLINE_S)

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(DEADLINE_S)


def eventually(done: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path, tmp_path / "log")
    yield host
    if host.process is not None and host.process.poll() is None:
        host.process.kill()
        host.process.wait()
        eventually(lambda: not host.run_directories())


@pytest.fixture
def brokers() -> Iterator[Callable[..., BareStubBroker]]:
    made: list[BareStubBroker] = []

    def start(**options: Any) -> BareStubBroker:
        made.append(BareStubBroker(SHM, THEIRS, **options))
        return made[-1]

    yield start
    for broker in made:
        broker.close()


@pytest.fixture
def broker(host: Host, brokers: Callable[..., BareStubBroker]) -> BareStubBroker:
    """A host has joined it."""
    broker = brokers()
    host.start(broker.address)
    broker.welcome()
    return broker


def segments(service: str) -> list[str]:
    return [name for name in os.listdir(SHM) if name.startswith("tensorbus-") and name.split("-")[2][:8] == service]


# --- joining ----------------------------------------------------------------------------------------------------------


def test_it_joins_and_shows_that_it_shares_memory(host: Host, brokers: Callable[..., BareStubBroker]) -> None:
    broker = brokers()
    host.start(broker.address, "--model=a*", "--model=b", "--host-name=host 7", "--cluster-id=c")
    probes = {name: Handle(*broker.store.allocate(16)[:3]) for name in ("aaaaaaaa", "bbbbbbbb")}
    broker.reader.view(*probes["aaaaaaaa"])[:] = b"sixteen bytes .."
    probes["bbbbbbbb"] = probes["bbbbbbbb"]._replace(segment="tensorbus-1-" + 32 * "0")
    join, proved, holds = broker.welcome(probes)
    assert (join.role, join.cluster, join.name, join.models) == ("stub", "c", "host 7", ["a*", "b"])
    assert bytes(broker.reader.view(*join.probe)) == join.nonce
    assert join.service == broker.host == join.probe.segment.split("-")[2][:8]
    assert proved.nonces == {"aaaaaaaa": b"sixteen bytes .."}
    assert holds.stubs == []


def test_it_asks_until_a_broker_is_there(host: Host, brokers: Callable[..., BareStubBroker]) -> None:
    broker = brokers()
    port = broker.port
    broker.close()
    host.start(f"tcp://127.0.0.1:{port}")
    eventually(lambda: "nobody listens there" in host.log)
    brokers(port=port).welcome()
    assert host.log.count("nobody listens there") == 1


def test_one_that_is_refused_exits(host: Host, brokers: Callable[..., BareStubBroker]) -> None:
    broker = brokers()
    host.start(broker.address)
    broker.expect(Join)
    broker.send(Refused(REFUSED, "wrong cluster"))
    assert host.wait() == 1
    assert "wrong cluster" in host.log


def test_an_id_in_use_is_exchanged_for_another(host: Host, brokers: Callable[..., BareStubBroker]) -> None:
    broker = brokers()
    host.start(broker.address)
    first = broker.expect(Join)
    broker.send(Refused(REFUSED, f"id in use: {first.service}"))
    while (second := broker.expect(Join)).service == first.service:
        pass
    assert broker.host == second.service == second.probe.segment.split("-")[2][:8]
    assert bytes(broker.reader.view(*second.probe)) == second.nonce
    eventually(lambda: not segments(first.service))


# --- stubs ------------------------------------------------------------------------------------------------------------


def test_a_stub_serves_from_the_repository_here_in_memory_of_this_host(host: Host, broker: BareStubBroker) -> None:
    where = "def initialize(self, args):\n    print(args['model_repository'], __file__, flush=True)\n"
    write_model(host.models, where)
    hello = broker.start("k1")
    ready = broker.load("k1")
    assert ready.nonce == NONCE
    assert ready.segment.startswith(f"tensorbus-{hello.pid}-{broker.host}")
    assert broker.values(broker.infer("k1", 1.0, 2.0)) == [1.0, 2.0]
    assert broker.values(broker.infer("k1", 3.0, inline=True)) == [3.0]
    eventually(lambda: f"m:1 k1] {host.models}/m {host.models}/m/1/model.py\n" in host.log)


def test_one_that_finishes_is_dead_after_its_last_word(host: Host, broker: BareStubBroker) -> None:
    write_model(host.models)
    ready = broker.serve("k1")
    broker.finish("k1")
    broker.next_of("k1", Goodbye)
    assert broker.died("k1") == Died("X", "k1", 0, 0)
    assert not Path(SHM, ready.segment).exists()


def test_files_come_along_and_go_with_the_stub(host: Host, broker: BareStubBroker, tmp_path: Path) -> None:
    source = write_model(tmp_path / "elsewhere").read_bytes()
    broker.start("k1", files={"1/model.py": source, "1/data/x": b"x"})
    broker.load("k1")
    assert broker.values(broker.infer("k1", 1.0)) == [1.0]
    (directory,) = [path for run in host.run_directories() for path in run.glob("files/*")]
    assert (directory / "1" / "data" / "x").read_bytes() == b"x"
    broker.stop("k1")
    assert broker.died("k1").status == -signal.SIGKILL
    eventually(lambda: not directory.exists())


def test_what_cannot_be_started_is_dead_with_the_reason(host: Host, broker: BareStubBroker) -> None:
    environment = Environment(str(THEIRS / "m" / "env.tar.gz"), "EXECUTION_ENV_PATH of model 'm'", False)
    broker.send(Start(START, "k1", "m:1 k1", "m", 1, "m_0", "stamp", str(THEIRS / "m"), environment))
    kind, text = broker.died("k1").error
    assert kind == ErrorKind.INTERNAL
    assert f"{host.models}/m/env.tar.gz" in text and "EXECUTION_ENV_PATH of model 'm'" in text


def test_a_model_s_environment_is_looked_for_in_the_repository_here(host: Host, broker: BareStubBroker) -> None:
    write_model(host.models)
    (host.models / "m" / "env" / "bin").mkdir(parents=True)
    (host.models / "m" / "env" / "bin" / "python").symlink_to(sys.executable)
    environment = Environment(str(THEIRS / "m" / "env"), "EXECUTION_ENV_PATH of model 'm'", False)
    broker.send(Start(START, "k1", "m:1 k1", "m", 1, "m_0", "stamp", str(THEIRS / "m"), environment))
    hello = broker.next_of("k1", Hello)
    assert str(host.models / "m" / "env") in psutil.Process(hello.pid).environ()["VIRTUAL_ENV"]


def test_of_a_stub_that_dies_inside_execute_the_batch_is_told(host: Host, broker: BareStubBroker) -> None:
    write_model(host.models, SLOW)
    broker.start("k1")
    broker.load("k1")
    request, _ = broker.request(1.0)
    broker.execute("k1", request)
    eventually((host.models / "m" / "1" / "go.in").exists)
    broker.stop("k1")
    assert broker.died("k1") == Died("X", "k1", -9, request.id)


def test_one_that_is_aborted_writes_down_where_it_is(host: Host, broker: BareStubBroker) -> None:
    write_model(host.models, SLOW)
    broker.serve("k1")
    broker.execute("k1", broker.request(1.0)[0])
    eventually((host.models / "m" / "1" / "go.in").exists)
    broker.stop("k1", abort=True)
    assert broker.died("k1").status == -signal.SIGABRT
    assert "in execute" in host.log


def test_what_stubs_say_in_one_turn_comes_together(host: Host, broker: BareStubBroker) -> None:
    write_model(host.models)
    for key in ("k1", "k2"):
        broker.serve(key)
    broker.sizes.clear()
    requests = {key: [broker.request(1.0)[0] for _ in range(50)] for key in ("k1", "k2")}
    for each in zip(*requests.values(), strict=True):
        for key, request in zip(requests, each, strict=True):
            broker.execute(key, request)
    for key, sent in requests.items():
        answered: list[int] = []
        while len(answered) < len(sent):
            answered += [done.batch for done in broker.next_of(key, Results).executed]
        assert answered == [request.id for request in sent]
    assert sum(broker.sizes) <= 100 and len(broker.sizes) <= sum(broker.sizes)


# --- tensors ----------------------------------------------------------------------------------------------------------


def test_outputs_are_fetched_for_those_who_cannot_read_them(host: Host, broker: BareStubBroker) -> None:
    write_model(host.models)
    broker.serve("k1")
    (tensor,) = broker.infer("k1", *map(float, range(50_000))).outputs
    broker.send(Fetch(FETCH, 7, [tensor.place, tensor.place._replace(nbytes=4)]))
    assert broker.expect(Fetched) == Fetched("F", 7)
    assert [len(frame) for frame in broker.frames] == [200_000, 4]
    assert broker.frames[0] == broker.reader.view(*tensor.place)


@pytest.mark.parametrize("fault", ["another's", "outside", "negative", "no name", "gone"])
def test_what_is_no_memory_of_this_host_is_not_fetched(host: Host, broker: BareStubBroker, fault: str) -> None:
    write_model(host.models)
    broker.serve("k1")
    (tensor,) = broker.infer("k1", 1.0).outputs
    place = tensor.place
    handle = {
        "another's": Handle(*broker.store.allocate(8)[:3]),
        "outside": place._replace(nbytes=1 << 40),
        "negative": place._replace(offset=-8),
        "no name": place._replace(segment="../../etc/passwd"),
        "gone": place._replace(segment=place.segment[:-24] + 24 * "0"),
    }[fault]
    broker.send(Fetch(FETCH, 7, [place, handle]))
    fetched = broker.expect(Fetched)
    assert (fetched.number, broker.frames) == (7, []) and "handle" in fetched.error
    assert broker.values(broker.infer("k1", 2.0)) == [2.0]


def test_outputs_come_in_frames_where_that_is_asked_for(host: Host, broker: BareStubBroker) -> None:
    write_model(host.models)
    broker.serve("k1")
    request, frames = broker.request(1.0, 2.0, inline=True)
    broker.execute("k1", request, frames=frames, inline=[request.id])
    response = broker.response("k1")
    assert response.outputs[0].place == 0 and broker.values(response) == [1.0, 2.0]


# --- the broker goes and comes ----------------------------------------------------------------------------------------


def test_another_broker_is_told_what_is_held_and_then_what_was_said(
    host: Host, broker: BareStubBroker, brokers: Callable[..., BareStubBroker]
) -> None:
    write_model(host.models, SLOW)
    write_model(host.models, STREAMS, name="open")
    ready = broker.serve("k1")
    broker.serve("k2", "open", model_transaction_policy={"decoupled": True})
    (first, _), (second, _), (third, _) = (broker.request(number) for number in (1.0, 2.0, 3.0))
    broker.execute("k1", first, second)
    broker.execute("k2", third)
    assert broker.next_of("k2", Results).executed[0].batch == third.id
    eventually((host.models / "m" / "1" / "go.in").exists)
    port = broker.port
    broker.router.close()
    eventually(lambda: "the connection to the broker is lost" in host.log)  # what is said before goes with it
    (host.models / "m" / "1" / "go").touch()
    (host.models / "open" / "1" / "go").touch()
    another = brokers(port=port, name="two")
    _, _, holds = another.welcome()
    held = {stub.key: stub for stub in holds.stubs}
    assert held["k1"].ready == encode(ready)
    assert (held["k1"].model, held["k1"].version, held["k1"].stamp) == ("m", 1, "stamp")
    assert '"name": "m"' in held["k1"].config
    assert (held["k1"].batches, held["k1"].open) == ([(first.id, [first.id]), (second.id, [second.id])], [])
    assert (held["k2"].batches, held["k2"].open) == ([], [third.id])
    done = []
    while len(done) < 2:
        done += [executed.batch for executed in another.next_of("k1", Results).executed]
    assert done == [first.id, second.id]
    assert another.values(another.response("k2")) == [3.0]
    assert another.values(another.infer("k1", 5.0)) == [5.0]


def test_a_call_to_a_broker_that_has_gone_is_answered_with_an_error(
    host: Host, broker: BareStubBroker, brokers: Callable[..., BareStubBroker]
) -> None:
    write_model(host.models, CALLS)
    broker.serve("k1")
    broker.execute("k1", broker.request(1.0)[0])
    broker.next_of("k1", Call)
    broker.router.close()
    another = brokers(port=broker.port, name="two")
    another.welcome()
    assert another.response("k1").error == (ErrorKind.UNAVAILABLE, "the broker that was asked has gone!")


def test_of_a_stub_that_dies_meanwhile_another_broker_is_told(
    host: Host, broker: BareStubBroker, brokers: Callable[..., BareStubBroker]
) -> None:
    write_model(host.models, SLOW)
    hello = broker.start("k1")
    broker.load("k1")
    request, _ = broker.request(1.0)
    broker.execute("k1", request)
    eventually((host.models / "m" / "1" / "go.in").exists)
    broker.router.close()
    eventually(lambda: "the connection to the broker is lost" in host.log)
    os.kill(hello.pid, signal.SIGKILL)
    eventually(lambda: not psutil.pid_exists(hello.pid))
    another = brokers(port=broker.port, name="two")
    _, _, holds = another.welcome()
    assert [(stub.key, stub.batches) for stub in holds.stubs] == [("k1", [(request.id, [request.id])])]
    assert another.died("k1") == Died("X", "k1", -9, request.id)


def test_what_was_answered_just_before_is_told_to_another_broker(
    host: Host, broker: BareStubBroker, brokers: Callable[..., BareStubBroker]
) -> None:
    write_model(host.models)
    broker.serve("k1")
    answered = broker.infer("k1", 1.0).request
    broker.router.close()
    _, _, holds = brokers(port=broker.port, name="two").welcome()
    assert answered in holds.answered
    assert [(stub.batches, stub.open) for stub in holds.stubs] == [([], [])]


def test_a_broker_that_says_nothing_is_joined_anew(host: Host, brokers: Callable[..., BareStubBroker]) -> None:
    write_model(host.models)
    broker = brokers()
    host.start(broker.address)
    broker.welcome(silence_s=1.2)
    broker.expect(Join)
    broker.welcome()
    broker.serve("k1")
    assert "not heard from any more" in host.log


# --- broken and hostile brokers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        os.urandom(100),
        b"\x92\xa1O\x05",
        encode(Leave("L")),
        encode(ToStubs(TO_STUBS, [("k1", b"\x90", 3)])),
        encode(ToStubs(TO_STUBS, [("k1", b"\x90", -1)])),
        encode(ToStubs(TO_STUBS, [("k1", b"\x92\xa1L\x01", 0)])),
        encode(ToStubs(TO_STUBS, [("k1", b"\x93\xa1E\x01\x02", 0)])),
        encode(Start(START, "k1", "", "m", 1, "m_0", "stamp", "/m")),
    ],
    ids=lambda data: data[:12].hex(),
)
def test_a_broken_message_is_logged_once_and_all_begins_anew(host: Host, broker: BareStubBroker, data: bytes) -> None:
    write_model(host.models)
    broker.serve("k1")
    for _ in range(2):
        broker.send_bytes(data)
        broker.welcome()
    assert host.log.count("the broker broke the protocol") == 1
    assert broker.values(broker.infer("k1", 1.0)) == [1.0]


def test_a_file_that_leads_outside_is_not_written(host: Host, broker: BareStubBroker, tmp_path: Path) -> None:
    broker.send(Start(START, "k1", "", "m", 1, "m_0", "", "/m", files={"../../../evil": b"x"}))
    assert broker.died("k1").error is not None
    assert not list(tmp_path.rglob("evil"))


def test_a_stub_that_is_not_there_is_none_of_its_business(host: Host, broker: BareStubBroker) -> None:
    broker.to_stub("k9", Execute(EXECUTE, [], []))
    broker.stop("k9")
    write_model(host.models)
    broker.serve("k1")


def test_it_tells_how_it_is(host: Host, brokers: Callable[..., BareStubBroker]) -> None:
    def get(path: str) -> tuple[int, str]:
        port = re.search(r"Metrics Service at \S+:(\d+)", host.log)
        assert port is not None
        connection = http.client.HTTPConnection("127.0.0.1", int(port[1]), timeout=DEADLINE_S)
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    write_model(host.models)
    broker = brokers()
    host.start(broker.address)
    broker.expect(Join)
    assert (get("/health/live")[0], get("/health/ready")[0]) == (200, 503)
    broker.welcome()
    broker.serve("k1")
    (tensor,) = broker.infer("k1", 1.0, 2.0).outputs
    broker.send(Fetch(FETCH, 1, [tensor.place]))
    broker.expect(Fetched)
    eventually(lambda: get("/health/ready")[0] == 200)
    assert [line for line in get("/metrics")[1].splitlines() if line.startswith("tensorbus_stub_host_")] == [
        "tensorbus_stub_host_instances 1",
        "tensorbus_stub_host_starts_total 1",
        "tensorbus_stub_host_deaths_total 0",
        "tensorbus_stub_host_broker_up 1",
        "tensorbus_stub_host_fetched_bytes_total 8",
        'tensorbus_stub_host_messages_total{direction="from_stubs"} 3',
        'tensorbus_stub_host_messages_total{direction="to_stubs"} 2',
    ]


# --- the end ----------------------------------------------------------------------------------------------------------


def test_it_leaves_when_it_is_told_to_and_goes_once_it_may(host: Host, broker: BareStubBroker) -> None:
    write_model(host.models)
    broker.serve("k1")
    assert host.process is not None
    host.process.terminate()
    broker.expect(Leave)
    assert broker.values(broker.infer("k1", 1.0)) == [1.0]
    broker.finish("k1")
    broker.next_of("k1", Goodbye)
    broker.died("k1")
    broker.send(Dismissed(DISMISSED))
    assert host.wait() == 0
    assert not segments(broker.host) and not host.run_directories()


def test_when_its_time_is_over_it_goes_all_the_same(host: Host, brokers: Callable[..., BareStubBroker]) -> None:
    write_model(host.models)
    broker = brokers()
    host.start(broker.address, "--exit-timeout-secs=1")
    broker.welcome()
    hello = broker.start("k1")
    assert host.stop() == 1
    assert not psutil.pid_exists(hello.pid) and not segments(broker.host)


def test_without_a_broker_its_stubs_finalize_and_it_goes(host: Host, broker: BareStubBroker) -> None:
    write_model(host.models, "def finalize(self):\n    print('finalized', flush=True)\n")
    broker.serve("k1")
    broker.router.close()
    eventually(lambda: "is lost" in host.log)
    assert host.stop() == 0
    assert "finalized" in host.log and not segments(broker.host)


def test_without_a_broker_a_stub_that_was_given_no_model_does_not_keep_it(host: Host, broker: BareStubBroker) -> None:
    write_model(host.models)
    hello = broker.start("k1")
    broker.router.close()
    eventually(lambda: "is lost" in host.log)
    assert host.stop() == 0
    assert not psutil.pid_exists(hello.pid)


def test_killed_it_leaves_nothing(host: Host, broker: BareStubBroker) -> None:
    write_model(host.models)
    hello = broker.start("k1")
    broker.load("k1")
    assert host.process is not None and segments(broker.host)
    host.process.kill()
    eventually(lambda: not psutil.pid_exists(hello.pid) and not segments(broker.host) and not host.run_directories())
