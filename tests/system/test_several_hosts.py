"""A scaled stack over hosts that share nothing but a network: right answers, and cut links that nobody hangs on.

The gateway is on one host, the broker on another, stubs on two more; traffic is encrypted.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system import several_hosts
from tests.system.conftest import ROOT, Repository, eventually
from tests.system.scaled_stack import ScaledStack, Service, scaled_stack
from tests.system.several_hosts import Host
from tests.system.stack_client import DATATYPES, TIMEOUT_S

CLIENT = str(Path(__file__).with_name("stack_client.py"))

EVERY = """
def execute(self, requests):
    return [
        pb_utils.InferenceResponse(
            [pb_utils.Tensor("OUT" + one.name()[2:], one.as_numpy()) for one in request.inputs()]
        )
        for request in requests
    ]
"""

# Each execution is noted on its own host, where a cut link does not matter.
COUNTING = """
def initialize(self, args):
    self.file = open("/dev/shm/executed", "a", buffering=1)

def execute(self, requests):
    for request in requests:
        self.file.write("%d\\n" % values(request)[0])
    time.sleep(0.002)
    return [respond(request, values(request) * 2) for request in requests]
"""

pytestmark = [
    pytest.mark.usefixtures("all_in_shared_memory"),
    pytest.mark.skipif(bool(several_hosts.why_not()), reason=several_hosts.why_not()),
    pytest.mark.timeout(180),
]


def every_config() -> str:
    def tensors(prefix: str) -> str:
        kinds = {"BYTES": "STRING"}
        one = '{{ name: "{}_{}" data_type: TYPE_{} dims: [ -1 ] }}'
        return ", ".join(one.format(prefix, name, kinds.get(name, name)) for name in DATATYPES)

    return f'backend: "python"\ninput [{tensors("IN")}]\noutput [{tensors("OUT")}]'


class Hosts:
    """The stack, and the host of each service."""

    def __init__(self, stack: ScaledStack, hosts: list[Host]) -> None:
        self.of_gateway, self.of_broker, *self.of_stubs = hosts
        self.stack = stack
        self.broker = self.start_broker()
        self.stubs = [stack.stub_host(place=host.argv) for host in self.of_stubs]
        self.gateway = stack.gateway(
            f"--http-address={self.of_gateway.ip}",
            f"--grpc-address={self.of_gateway.ip}",
            f"--http-max-input-size={1 << 30}",
            place=self.of_gateway.argv,
        )

    def start_broker(self) -> Service:
        return self.stack.broker(place=self.of_broker.argv)

    def client(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, CLIENT, *arguments]
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return self.of_gateway.popen(command, cwd=ROOT, **streams)

    def get(self, path: str) -> int:
        command = [
            "curl",
            "-s",
            "-m",
            "5",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            f"http://{self.gateway.http}{path}",
        ]
        asked = subprocess.run(self.of_gateway.argv(command), capture_output=True, text=True, check=False)
        return int(asked.stdout or 0)

    def wait_ready(self, *models: str, timeout_s: float = 60) -> None:
        for model in models:
            eventually(lambda model=model: self.get(f"/v2/models/{model}/ready") == 200, timeout_s, model)  # type: ignore[misc]

    def executed(self) -> list[int]:
        numbers: list[int] = []
        for host in self.of_stubs:
            said = subprocess.run(host.argv(["cat", "/dev/shm/executed"]), capture_output=True, text=True, check=True)
            numbers += map(int, said.stdout.split())
        return numbers


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    tmp_path = tmp_path_factory.mktemp("hosts")
    repository = Repository(tmp_path / "models")
    repository.path.mkdir()
    repository.add("identity")
    repository.add("counting", COUNTING)
    repository.add("every", EVERY, config=every_config())
    keys = tmp_path / "keys"
    subprocess.run(
        [sys.executable, "-m", "tensorbus", "keys", str(keys)], check=True, cwd=ROOT, stdout=subprocess.DEVNULL
    )
    with (
        several_hosts.several_hosts(4) as four,
        scaled_stack(repository, tmp_path, ip=four[1].ip, keys=keys) as stack,
    ):
        hosts = Hosts(stack, four)
        hosts.wait_ready("identity", "counting", "every")
        yield hosts
        stack.close()
        for host in four:
            assert [name for name in host.shm() if name.startswith("tensorbus-")] == []


def test_every_datatype_and_64_mib_arrive_as_they_were_sent(hosts):
    client = hosts.client("datatypes", hosts.gateway.http, hosts.gateway.grpc)
    said, _ = client.communicate(timeout=120)
    assert said.decode().endswith("right\n"), said.decode()


def test_a_cut_link_under_load_hangs_nobody_and_nothing_is_executed_twice(hosts, tmp_path):
    outcomes = tmp_path / "outcomes"
    client = hosts.client("load", hosts.gateway.http, str(outcomes))
    stub_host, other_stub_host = hosts.of_stubs
    for cuts in ([stub_host], [hosts.of_broker], [hosts.of_gateway, other_stub_host]):
        eventually(lambda: len(hosts.executed()) > 20, 60, "the client is at work")
        before = len(hosts.executed())
        eventually(lambda before=before: len(hosts.executed()) > before + 50, 20)
        for host in cuts:
            host.cut()
        time.sleep(5)  # long enough to count as lost
        for host in cuts:
            host.restore()
        restored = time.monotonic()
        before = len(hosts.executed())
        eventually(lambda before=before: len(hosts.executed()) > before + 20, 10, "work goes on")
        assert time.monotonic() - restored < 8
    assert client.communicate(timeout=60)[0].endswith(b"done\n")
    numbers, statuses, took = zip(
        *(map(float, line.split()) for line in outcomes.read_text().splitlines()), strict=True
    )
    counts = Counter(map(int, statuses))
    executed = hosts.executed()
    assert len(executed) == len(set(executed)), "executed twice"
    answered = {int(number) for number, status in zip(numbers, statuses, strict=True) if status == 200}
    assert answered <= set(executed)
    assert counts.keys() <= {200, 503}, counts
    assert counts[200] > 500
    assert max(took) < TIMEOUT_S
