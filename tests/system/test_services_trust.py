"""The three services as processes: what they say of their health, and who is let in, by keys and by settings."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.conftest import ROOT, Repository, Server, eventually, serving
from tests.system.scaled_stack import ScaledStack, Service, ready, scaled_stack


def tensorbus(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tensorbus", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, env=environ or None)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    models = Repository(tmp_path / "models")
    models.path.mkdir()
    models.add("identity")
    return models


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    assert tensorbus("keys", str(tmp_path / "keys")).returncode == 0
    return tmp_path / "keys"


@pytest.fixture
def stack(repository: Repository, tmp_path: Path, keys: Path) -> Iterator[ScaledStack]:
    with scaled_stack(repository, tmp_path, keys=keys) as stack:
        yield stack


def health(service: Server, what: str) -> int:
    service.wait_for_line("Started Metrics Service")
    try:
        with urllib.request.urlopen(service.metrics_url.replace("/metrics", f"/health/{what}"), timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_with_keys_all_join_and_say_that_they_are_ready(stack: ScaledStack) -> None:
    broker = stack.broker()
    eventually(lambda: health(broker, "ready") == 200)  # though there is no stub host
    host, gateway = stack.stub_host(), ready(stack.gateway(), "identity")
    assert gateway.post("identity", [1]).data == [1]
    assert "encrypted=True" in broker.text() and "encrypted=True" in gateway.text()
    for service in (broker, gateway, host):  # the host once it has been told what to start
        eventually(lambda service=service: (health(service, "live"), health(service, "ready")) == (200, 200))


def test_without_a_broker_services_are_live_and_not_ready(stack: ScaledStack) -> None:
    broker = stack.broker()
    services = stack.stub_host(), ready(stack.gateway(), "identity")
    broker.process.send_signal(signal.SIGTERM)
    broker.process.wait(30)
    for service in services:
        eventually(lambda service=service: health(service, "ready") == 503)  # type: ignore[misc]
        assert health(service, "live") == 200


def test_serve_says_the_same_as_its_front(repository: Repository, tmp_path: Path) -> None:
    with serving(repository, tmp_path) as start:
        server = start()
        assert (health(server, "live"), health(server, "ready")) == (200, 200)


def test_a_service_with_a_key_of_its_own_is_refused_until_it_is_authorized(
    repository: Repository, tmp_path: Path, keys: Path
) -> None:
    authorized = tmp_path / "authorized"
    authorized.mkdir()
    (authorized / "known.pub").write_text((keys / "service.pub").read_text())
    foreign = tmp_path / "foreign"
    assert tensorbus("keys", str(foreign)).returncode == 0
    with scaled_stack(repository, tmp_path, keys=keys) as stack:
        broker = stack.broker(f"--curve-authorized={authorized}")
        gateway = stack.gateway(f"--curve-key={foreign}/service.key", wait=False)
        gateway.wait_for_line("the broker does not know our key")
        broker.wait_for_line("its key is not authorized")
        (line,) = [line for line in broker.text().splitlines() if "a service was refused" in line]
        public = (foreign / "service.pub").read_text().split('public-key = "')[1].split('"')[0]
        assert "peer=127.0.0.1" in line and json.dumps(public).strip('"') in line
        assert (health(gateway, "live"), health(gateway, "ready")) == (200, 503)
        (authorized / "new.pub").write_text((foreign / "service.pub").read_text())
        gateway.wait_for_line("joined the broker")


def test_who_expects_another_broker_is_told(stack: ScaledStack, tmp_path: Path) -> None:
    assert tensorbus("keys", str(tmp_path / "foreign")).returncode == 0
    broker = stack.broker()
    host: Service = stack.stub_host(f"--curve-broker-key={tmp_path}/foreign/broker.pub", wait=False)
    host.wait_for_line("it hangs up, as a broker does that has another key, or none")
    broker.wait_for_line("it does not know our key")
    assert "joined" not in broker.text() + host.text()


def test_a_broker_that_others_can_reach_does_not_start_without_keys(repository: Repository) -> None:
    done = tensorbus("broker", "--bind=tcp://0.0.0.0:0", f"--model-repository={repository.path}")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("Other hosts can reach tcp://0.0.0.0:0: that requires --curve-key")


def test_a_broker_whose_port_is_taken_says_so(repository: Repository) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        done = tensorbus("broker", f"--bind={address}", f"--model-repository={repository.path}", "--metrics-port=0")
    assert done.returncode == 1 and f"cannot listen at {address}: Address already in use" in done.stderr


def test_settings_of_a_file_reach_the_service(repository: Repository, tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(f'model-repository = "{repository.path}"\nbind = "tcp://10.0.0.1:8003"\n')
    done = tensorbus("broker", f"--config-file={file}")
    assert done.returncode == 1 and "Other hosts can reach tcp://10.0.0.1:8003" in done.stderr
