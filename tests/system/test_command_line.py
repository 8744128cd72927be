"""How the command begins and ends: flags, ports, and the reason as the last line."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from tests.system.conftest import ROOT, Repository, Start


def last_line_of(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "tensorbus", "serve", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    return done.returncode, done.stderr.splitlines()[-1]


def test_an_unknown_flag_ends_it_with_the_reason() -> None:
    code, reason = last_line_of("--no-such-flag=1")
    assert code == 1
    assert "no-such-flag" in reason


def test_a_value_that_cannot_be_read_ends_it_with_the_reason() -> None:
    code, reason = last_line_of("--model-repository=/tmp", "--http-port=many")
    assert code == 1
    assert reason == "Invalid option value. Got many"


def test_a_repository_must_be_given_and_must_be_there(repository: Repository) -> None:
    assert last_line_of() == (1, "error: creating server: Invalid argument - --model-repository must be specified")
    missing = str(repository.path / "nowhere")
    assert last_line_of(f"--model-repository={missing}") == (
        1,
        f"error: creating server: Internal - failed to stat file {missing}",
    )


@pytest.mark.parametrize("service, flag", [("HTTP", "http"), ("GRPC", "grpc"), ("Metrics", "metrics")])
def test_a_taken_port_ends_it_with_the_reason(repository: Repository, start: Start, service: str, flag: str) -> None:
    repository.add("ident")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = start(f"--{flag}-port={port}", wait=False)
        assert server.wait(20) == 1
    expected = f"failed to start {service} service: Unavailable - Socket '127.0.0.1:{port}' already in use"
    assert server.lines("E", expected)
    assert "Traceback" not in server.text()


@pytest.mark.parametrize("service, flag", [("GRPCInferenceService", "grpc"), ("HTTPService", "http")])
def test_a_front_that_is_not_allowed_is_not_there(
    repository: Repository, start: Start, service: str, flag: str
) -> None:
    repository.add("ident")
    server = start(f"--allow-{flag}=false")
    assert not server.lines(f"Started {service}")
    assert server.lines("Started Metrics Service")


def test_without_metrics_the_rest_is_served(repository: Repository, start: Start) -> None:
    repository.add("ident")
    server = start("--allow-metrics=false", wait=False).wait_for_line("Started HTTPService")
    assert server.post("ident", [1.0]).data == [1.0]


def test_the_log_shows_what_is_served_and_where(repository: Repository, start: Start) -> None:
    repository.add("ident")
    text = start("--id=mine").text()
    rows = ["| ident | 1       | READY  |", "| server_id", "Started GRPCInferenceService at 127.0.0.1:"]
    rows += ["Started HTTPService at 127.0.0.1:", "Started Metrics Service at 127.0.0.1:"]
    assert [row for row in rows if row not in text] == []


def test_starting_with_one_small_model_takes_less_than_two_seconds_of_cpu(repository: Repository, start: Start) -> None:
    repository.add("ident")
    server = start()
    assert server.ready()
    times = [process.cpu_times() for process in server.processes()]
    assert sum(time.user + time.system for time in times) < 2


def test_a_log_file_takes_the_log(repository: Repository, start: Start) -> None:
    repository.add("ident")
    path = repository.path.parent / "the.log"
    server = start(f"--log-file={path}", wait=False)
    server.log = path
    server.wait_for_line("Started Metrics Service")
    assert server.post("ident", [1.0]).data == [1.0]
    assert path.stat().st_mode & 0o022 == 0
