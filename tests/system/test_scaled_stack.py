"""Gateway, broker and stub hosts as processes of their own: right answers, by shared memory and by frames."""

from __future__ import annotations

import json
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.system import several_hosts
from tests.system.conftest import ROOT, Background, Repository, eventually, together
from tests.system.ensemble_models import add_chain
from tests.system.grpc_stream import DECOUPLED, streaming
from tests.system.scaled_stack import ScaledStack, Service, ready, scaled_stack

pytestmark = pytest.mark.usefixtures("all_in_shared_memory")

COUNTING = """
def initialize(self, args):
    self.where = args["model_repository"]

def execute(self, requests):
    with open(self.where + "/executed", "a") as file:
        for request in requests:
            file.write("%d\\n" % values(request)[0])
    return [respond(request, values(request) * 2) for request in requests]
"""

SLEEPY = """
def execute(self, requests):
    time.sleep(float(values(requests[0])[0]))
    return [respond(request, values(request)) for request in requests]
"""


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    models = Repository(tmp_path / "models")
    models.path.mkdir()
    models.add("identity")
    return models


@pytest.fixture
def stack(repository: Repository, tmp_path: Path) -> Iterator[ScaledStack]:
    with scaled_stack(repository, tmp_path) as stack:
        yield stack


def test_a_request_goes_through_all_three_and_comes_back(stack):
    stack.broker()
    stack.stub_host()
    gateway = ready(stack.gateway(), "identity")
    assert gateway.post("identity", [1, 2, 3]).data == [1, 2, 3]
    array = np.arange(1 << 20, dtype=np.float32)
    assert np.array_equal(gateway.post_binary("identity", array).array, array)


def test_services_may_be_started_in_any_order(stack, tmp_path):
    stack.broker().kill()  # only its address is wanted
    gateway = stack.gateway(wait=False)
    stack.stub_host(wait=False)
    gateway.wait_for_line("waiting for the broker")
    assert gateway.get("/v2/health/live").status == 200
    assert gateway.get("/v2/health/ready").status == 400
    stack.broker()
    ready(gateway, "identity")
    assert gateway.post("identity", [4]).data == [4]


def health(service: Service) -> int:
    try:
        with urllib.request.urlopen(service.metrics_url.replace("/metrics", "/health/ready"), timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def requests_by(gateway: Service, path: str) -> int:
    start = f'tensorbus_gateway_requests_total{{path="{path}"}} '
    (line,) = [line for line in gateway.exposition() if line.startswith(start)]
    return int(line.removeprefix(start))


def with_its_own_shm(command: Sequence[str]) -> list[str]:
    """As in a container that nobody has told to share."""
    script = 'mount -t tmpfs -o size=1g,mode=1777 tmpfs /dev/shm && exec "$@"'
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", *command]


def random_tensors_come_back(gateway: Service, count: int = 20) -> None:
    rng = np.random.default_rng()
    for _ in range(count):
        array = rng.random(1_000_000, dtype=np.float32)
        assert np.array_equal(gateway.post_binary("identity", array).array, array)


@pytest.mark.skipif(bool(several_hosts.why_not()), reason=several_hosts.why_not())
def test_tensors_go_by_shared_memory_where_all_share_it_and_by_frames_where_not(stack):
    broker = stack.broker()
    stack.stub_host()
    gateway = ready(stack.gateway(), "identity")
    random_tensors_come_back(gateway)
    assert (requests_by(gateway, "shm"), requests_by(gateway, "frames")) == (20, 0)
    apart = stack.stub_host(place=with_its_own_shm)
    eventually(lambda: apart.stubs("identity"), 20)
    eventually(lambda: gateway.post("identity", [1]).data == [1] and requests_by(gateway, "frames") > 0, 20)
    random_tensors_come_back(gateway)
    together(4, [lambda: random_tensors_come_back(gateway, 5)] * 4)  # both hosts are busy
    assert requests_by(gateway, "frames") >= 40
    assert len(broker.lines("a service has joined", "role=stub")) == 2
    assert apart.terminate() == 0
    by_frames = requests_by(gateway, "frames")
    eventually(lambda: gateway.post("identity", [1]).data == [1] and requests_by(gateway, "shm") > 22, 20)
    random_tensors_come_back(gateway)
    assert requests_by(gateway, "frames") <= by_frames + 20


@pytest.mark.skipif(bool(several_hosts.why_not()), reason=several_hosts.why_not())
def test_a_gateway_that_shares_no_memory_is_served_by_frames(stack):
    broker = stack.broker()
    stack.stub_host()
    gateway = stack.gateway(place=with_its_own_shm)
    ready(gateway, "identity")
    random_tensors_come_back(gateway)
    assert (requests_by(gateway, "shm"), requests_by(gateway, "frames")) == (0, 20)
    assert len(broker.lines("a service has joined", "role=gateway", "shares_memory=False")) == 1


@pytest.mark.parametrize("kind", ["gateway", "stub"])
def test_a_service_of_another_cluster_is_refused_and_both_say_so(stack, kind):
    broker = stack.broker("--cluster-id=here")
    start = stack.gateway if kind == "gateway" else stack.stub_host
    service = start("--cluster-id=there", wait=False)
    assert service.wait(20) == 1
    assert len(service.lines("cluster id 'there' is not the broker's")) == 1
    assert len(broker.lines("a service was refused", f"role={kind}", "cluster id 'there'")) == 1


def test_a_service_that_speaks_an_older_protocol_is_refused_and_both_say_so(stack, tmp_path):
    broker = stack.broker()
    older = tmp_path / "older" / "sitecustomize.py"
    older.parent.mkdir()
    older.write_text("import protocol.services\nprotocol.services.VERSION = 0\n")
    service = stack.gateway(wait=False, environ={"PYTHONPATH": f"{older.parent}:{ROOT}"})
    assert service.wait(20) == 1
    assert len(service.lines("protocol version 0 is not the broker's")) == 1
    assert len(broker.lines("a service was refused", "protocol version 0")) == 1


SUMS_CONFIG = """
backend: "python"
max_batch_size: 4
sequence_batching {
  direct {}
  control_input [{ name: "CORRID" control [{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 }] }]
}
input [{ name: "IN" data_type: TYPE_FP32 dims: [ 1 ] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] }]
"""

SUMS = """
sums = {}

def execute(self, requests):
    out = []
    for request in requests:
        id = int(pb_utils.get_input_tensor_by_name(request, "CORRID").as_numpy().flat[0])
        self.sums[id] = self.sums.get(id, 0) * 2 + float(values(request).flat[0])  # another order is another sum
        out.append(respond(request, np.array([[self.sums[id]]], np.float32)))
    return out
"""


def test_a_sequence_is_in_order_whichever_gateway_its_requests_come_by(repository, stack):
    repository.add("sums", SUMS, config=SUMS_CONFIG)
    stack.broker()
    stack.stub_host(), stack.stub_host()
    gateways = [ready(stack.gateway(), "sums") for _ in range(2)]

    def sequence(id: int) -> None:
        expected = 0.0
        for step in range(20):
            flags = {"sequence_id": id, "sequence_start": step == 0, "sequence_end": step == 19}
            inputs = [{"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [step % 3]}]
            body = json.dumps({"inputs": inputs, "parameters": flags}).encode()
            expected = expected * 2 + step % 3
            assert gateways[(id + step) % 2].call("POST", "/v2/models/sums/infer", body).data == [expected]

    together(6, [lambda id=id: sequence(id) for id in range(1, 13)])  # type: ignore[misc]


def test_a_host_that_joins_takes_work_and_one_that_leaves_fails_nothing(repository, stack):
    repository.add("sleepy", SLEEPY)
    stack.broker()
    stack.stub_host()
    gateway = ready(stack.gateway(), "sleepy")
    load = Background(4, lambda: gateway.post("sleepy", [0.02]).data)
    second = stack.stub_host()
    eventually(lambda: second.stubs("sleepy"), 20)
    done = len(load.results)
    eventually(lambda: len(load.results) > done + 20)
    assert second.terminate() == 0
    done = len(load.results)
    eventually(lambda: len(load.results) > done + 20)
    load.stop()
    assert not gateway.lines("request failed")


def test_what_is_executed_is_executed_once_though_the_broker_dies(repository, stack):
    repository.add("counting", COUNTING)
    broker = stack.broker()
    stack.stub_host()
    gateway = ready(stack.gateway(), "counting")
    numbers = iter(range(1, 1_000_000))
    lock = threading.Lock()
    outcomes: dict[int, int] = {}

    def one() -> None:
        with lock:
            number = next(numbers)
        answer = gateway.post("counting", [number], timeout_s=30)
        assert answer.status != 200 or answer.data == [2 * number]
        outcomes[number] = answer.status

    load = Background(4, one)
    for _ in range(3):
        done = len(outcomes)
        eventually(lambda done=done: len(outcomes) > done + 50, 30)
        broker.kill()
        broker = stack.broker()
        since = time.monotonic()
        ready(gateway, "counting")
        assert time.monotonic() - since < 5
    load.stop()
    executed = [int(line) for line in (repository.path / "counting" / "executed").read_text().split()]
    assert len(executed) == len(set(executed)), "executed twice"
    assert {number for number, status in outcomes.items() if status == 200} <= set(executed)
    assert set(outcomes.values()) <= {200, 503}


COUNTS = """
def execute(self, requests):
    (request,) = requests
    sender = request.get_response_sender()
    for number in range(int(values(request)[0])):
        if sender.is_cancelled():
            break
        sender.send(respond(request, np.array([number], np.float32)))
        time.sleep(0.01)
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def test_a_stream_of_an_ensemble_ends_with_the_broker_and_holds_no_instance(repository, stack):
    """It began anew once its step, which waited for five minutes for a broker that was gone, let the instance go."""
    repository.add("counts", COUNTS, config=DECOUPLED % 1)
    add_chain(repository, "both", "counts", "identity")
    broker = stack.broker()
    stack.stub_host()
    gateway = ready(stack.gateway(), "both")
    with streaming(gateway) as stream:
        stream.send("both", [100_000])
        assert [stream.next().data for _ in range(5)] == [[0], [1], [2], [3], [4]]
        broker.kill()
        stack.broker()
        answers = stream.until_final()
        assert [one.data for one in answers[:-1]] == [[number] for number in range(5, 4 + len(answers))]
        assert "was lost, and may have been executed" in answers[-1].error
    ready(gateway, "both")
    with streaming(gateway) as stream:
        stream.send("both", [3])
        assert [one.data for one in stream.until_final()] == [[0], [1], [2], None]


LATE = COUNTING.replace(
    "def execute(self, requests):",
    "def execute(self, requests):\n    open(self.where + '/begun', 'w').close()\n"
    "    while not os.path.exists(self.where + '/go'): time.sleep(0.01)",
)


def test_what_was_answered_to_a_broker_that_died_with_the_answer_is_not_executed_again(repository, stack):
    """Nobody holds it any more, and nobody knows whether the gateway has it: it fails once."""
    repository.add("late", LATE)
    place = repository.path / "late"
    broker = stack.broker()
    host = stack.stub_host()
    gateway = ready(stack.gateway("--broker-timeout-secs=60"), "late")

    def said() -> str:
        return next(line for line in host.exposition() if 'direction="from_stubs"' in line)

    post = Background(1, lambda: gateway.post("late", [7], timeout_s=30), times=1)
    eventually((place / "begun").exists)
    broker.signal(signal.SIGSTOP)
    before = said()
    (place / "go").touch()
    eventually(lambda: said() != before)
    broker.kill()
    stack.broker()
    (answer,) = post.stop()
    assert (answer.status, "late" in answer.error) == (503, True)
    assert (place / "executed").read_text().split() == ["7"]
    assert ready(gateway, "late").post("late", [8], timeout_s=30).data == [16]


def test_a_broker_that_is_replaced_fails_nothing_and_models_stay_loaded(repository, stack):
    broker = stack.broker()
    host = stack.stub_host()
    gateway = ready(stack.gateway(), "identity")
    (stub,) = host.stubs("identity")
    load = Background(4, lambda: gateway.post("identity", [5]).status)
    for _ in range(2):
        done = len(load.results)
        eventually(lambda done=done: len(load.results) > done + 50)
        assert broker.terminate() == 0
        broker = stack.broker()
    done = len(load.results)
    eventually(lambda done=done: len(load.results) > done + 50)
    assert set(load.stop()) == {200}
    assert host.stubs("identity") == [stub]


def test_a_stub_host_is_ready_when_its_models_are(repository, stack):
    repository.add("slow", "def initialize(self, args):\n    wait_for(args['model_repository'] + '/go')\n" + SLEEPY)
    stack.broker()
    host = stack.stub_host()
    eventually(lambda: host.stubs("identity"))
    time.sleep(1)  # it has had all orders by now
    assert health(host) == 503
    (repository.path / "slow" / "go").touch()
    eventually(lambda: health(host) == 200)


def test_a_broker_that_is_terminated_answers_what_it_has(repository, stack):
    repository.add("sleepy", SLEEPY)
    broker = stack.broker()
    stack.stub_host()
    gateway = ready(stack.gateway(), "sleepy")
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(gateway.post("sleepy", [1.0]).status))
    thread.start()
    eventually(lambda: gateway.get("/v2/models/sleepy/stats").status == 200)
    eventually(lambda: any("tensorbus_gateway_pending_requests 1" in line for line in gateway.exposition()))
    broker.signal(signal.SIGTERM)
    thread.join(20)
    assert answers == [200]
    assert broker.wait() == 0
