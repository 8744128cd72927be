"""What clients see when a model's process dies, and how the server comes back."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.system.conftest import SHM, Answer, Background, Repository, Server, Start, eventually, title_of, together

pytestmark = pytest.mark.usefixtures("all_in_shared_memory")

Flag = Callable[[str], Path]

DEATHS = {
    "exit code 0": "os._exit(0)",
    "exit code 7": "os._exit(7)",
    "signal 11": "__import__('ctypes').string_at(0)",
    "signal 9": "os.kill(os.getpid(), signal.SIGKILL)",
    "signal 6": "os.abort()",
}

# Dies of 13. From its second process on it comes up only when it may.
MORTAL = """
def initialize(self, args):
    if os.path.exists({started!r}):
        wait_for({go!r})
    open({started!r}, "w").close()

def execute(self, requests):
    for request in requests:
        if values(request)[0] == 13:
            {death}
    return [respond(request, values(request)) for request in requests]
"""

NEVER_LOADS = """
def initialize(self, args):
    open({inside!r}, "w").close()
    wait_for({never!r})
"""

DIES_OF_13 = """
def execute(self, requests):
    for request in requests:
        if values(request)[0] == 13:
            os._exit(1)
        time.sleep({seconds})
    return [respond(request, values(request)) for request in requests]
"""


def not_healthy(answer: Answer, instance: str) -> bool:
    return answer.status == 500 and answer.error == f"Stub process '{instance}' is not healthy."


@pytest.mark.parametrize("cause", DEATHS)
def test_a_model_that_dies_fails_the_request_inside_it_and_comes_back(
    repository: Repository, start: Start, flag: Flag, cause: str
) -> None:
    """A model called os._exit or crashed in C: a zombie stayed, requests hung, and model-ready was still 200."""
    code = MORTAL.format(started=str(flag("started")), go=str(flag("go")), death=DEATHS[cause])
    repository.add("die", code)
    server = start()
    assert server.ready("die")

    sent = time.monotonic()
    assert not_healthy(server.post("die", [13.0]), "die_0_0")
    assert time.monotonic() - sent < 2
    assert not server.ready("die")
    assert not server.ready()
    assert server.get("/v2/health/live").status == 200
    assert server.lines("Model 'die' version 1 is not ready: Stub process 'die_0_0' is not healthy.")

    flag("go").touch()
    assert server.post("die", [1.0]).data == [1.0]
    assert server.ready("die")
    assert server.ready()
    assert not server.zombies()
    assert len(server.stubs("die")) == 1
    assert server.metric("tensorbus_stub_restarts_total", "die") == 1
    assert server.failures("die") == {"BACKEND": 1}
    (line,) = server.lines("a stub process died")
    assert "die_0_0" in line
    assert cause in line


def test_a_request_that_comes_while_the_model_restarts_waits_for_it(
    repository: Repository, start: Start, flag: Flag
) -> None:
    code = MORTAL.format(started=str(flag("started")), go=str(flag("go")), death="os._exit(0)")
    repository.add("die", code)
    server = start()
    server.post("die", [13.0])

    background = Background(1, lambda: server.post("die", [1.0]))
    eventually(lambda: server.pending("die") == 1)
    flag("go").touch()
    assert all(answer.data == [1.0] for answer in background.stop())


def test_leaving_the_interpreter_inside_execute_is_an_error_and_not_an_end(
    repository: Repository, start: Start
) -> None:
    """sys.exit() passed for a normal return of execute, or ended the process."""
    repository.add("leave", "def execute(self, requests):\n    sys.exit(int(values(requests[0])[0]))")
    server = start()
    stub = server.stub("leave")

    for code in (0.0, 3.0):
        answer = server.post("leave", [code])
        assert answer.status == 500
        assert "SystemExit" in answer.error
    assert server.stub("leave") == stub
    assert server.ready()


@pytest.mark.parametrize("instances", [1, 3])
def test_of_many_clients_only_the_one_with_the_poison_fails(
    repository: Repository, start: Start, instances: int
) -> None:
    """One bad request failed the others that its model's processes held."""
    repository.add("die", DIES_OF_13.format(seconds=0.002), instances)
    server = start()

    for poisoned in (0, 15, 31):
        values = [[13.0] if client == poisoned else [100.0 + client] for client in range(32)]
        answers = together(32, [lambda v=v: server.post("die", v) for v in values])  # type: ignore[misc]
        failed = [client for client, answer in enumerate(answers) if answer.status != 200]
        assert failed == [poisoned]
        assert "is not healthy." in answers[poisoned].error
        assert all(answers[client].data == values[client] for client in range(32) if client != poisoned)
    assert eventually(lambda: server.ready("die"))
    assert len(server.stubs("die")) == instances
    assert server.failures("die") == {"BACKEND": 3}
    assert server.pending("die") == 0


def test_a_model_that_dies_over_and_over_disturbs_no_other(repository: Repository, start: Start) -> None:
    repository.add("die", DIES_OF_13.format(seconds=0))
    repository.add("ident")
    server = start()
    slowest = 0.0

    def ask() -> Answer:
        nonlocal slowest
        sent = time.monotonic()
        answer = server.post("ident", [5.0])
        slowest = max(slowest, time.monotonic() - sent)
        return answer

    background = Background(4, ask)
    for _ in range(4):
        assert server.post("die", [13.0]).status == 500
    answers = background.stop()
    assert len(answers) > 10
    assert all(answer.data == [5.0] for answer in answers)
    assert slowest < 1.0
    assert server.ready("ident")


def test_while_one_instance_is_dead_the_others_serve(repository: Repository, start: Start, flag: Flag) -> None:
    code = """
    def initialize(self, args):
        if args["model_instance_name"] == "die_0_1":
            if os.path.exists({started!r}):
                wait_for({go!r})
            open({started!r}, "w").close()

    def execute(self, requests):
        return [respond(request, values(request)) for request in requests]
    """
    repository.add("die", code.format(started=str(flag("started")), go=str(flag("go"))), instances=2)
    server = start()
    (second,) = [stub for stub in server.stubs("die") if "die_0_1" in title_of(stub)]

    second.kill()
    eventually(lambda: not server.ready("die"))
    for number in range(20):
        assert server.post("die", [float(number)], timeout_s=5).data == [number]
    assert not server.ready()
    flag("go").touch()
    eventually(server.ready)
    assert server.failures("die") == {}


def test_a_model_killed_while_idle_costs_no_request(repository: Repository, start: Start) -> None:
    repository.add("ident")
    server = start()
    for number in range(3):
        server.stub("ident").kill()
        eventually(lambda: server.metric("tensorbus_stub_restarts_total", "ident") == number + 1)  # noqa: B023
        assert server.post("ident", [1.0]).data == [1.0]
    assert not server.zombies()


def test_a_model_that_cannot_start_again_is_tried_less_and_less_and_refuses_at_once(
    repository: Repository, start: Start, flag: Flag
) -> None:
    """A model whose initialize failed on restart was started over and over, and its requests hung meanwhile."""
    code = """
    def initialize(self, args):
        with open({starts!r}, "a") as file:
            file.write("x")
        if os.path.exists({broken!r}):
            raise ValueError("no weights")

    def execute(self, requests):
        os._exit(1) if os.path.exists({broken!r}) else None
        return [respond(request, values(request)) for request in requests]
    """
    starts, broken = flag("starts"), flag("broken")
    repository.add("die", code.format(starts=str(starts), broken=str(broken)))
    server = start()
    broken.touch()
    assert not_healthy(server.post("die", [1.0]), "die_0_0")

    eventually(lambda: server.lines("no weights"), 5, "the reason is in the log")
    began, refusals = time.monotonic(), 0
    while time.monotonic() - began < 3 or len(starts.read_text()) < 3:
        sent = time.monotonic()
        assert sent - began < 20
        answer = server.post("die", [1.0])
        assert answer.status == 500, answer
        assert answer.error == "Stub process 'die_0_0' is not healthy."
        assert time.monotonic() - sent < 0.5
        refusals += 1
    assert refusals > 20
    assert 3 <= len(starts.read_text()) <= 6  # the first, the second at once, then after 0.5 s, 1 s, 2 s
    assert not server.ready("die")

    broken.unlink()
    eventually(lambda: server.ready("die"), 10)
    assert server.post("die", [1.0]).data == [1.0]


def test_the_server_survives_the_death_of_all_its_children(repository: Repository, start: Start) -> None:
    repository.add("one")
    repository.add("two", instances=2)
    server = start()
    for child in server.processes()[1:]:
        with contextlib.suppress(psutil.NoSuchProcess):  # one whose parent was first
            child.kill()
    eventually(server.ready, 10)
    assert server.post("one", [1.0]).data == [1.0]
    assert server.post("two", [2.0]).data == [2.0]
    assert len(server.stubs()) == 3
    assert not server.zombies()


def test_the_death_of_the_fork_server_is_survived(repository: Repository, start: Start) -> None:
    repository.add("slow", DIES_OF_13.format(seconds=0.5))
    repository.add("ident")
    server = start()
    before = server.fork_server()
    background = Background(1, lambda: server.post("slow", [1.0]))
    eventually(lambda: server.metric("nv_inference_exec_count", "slow") == 1)

    before.kill()
    eventually(lambda: len(background.results) > 1 and background.results[-1].status == 200)
    answers = background.stop()
    assert [answer for answer in answers if answer.status != 200 and not not_healthy(answer, "slow_0_0")] == []
    assert server.fork_server() != before
    eventually(server.ready)
    assert server.post("ident", [1.0]).data == [1.0]
    assert not server.zombies()


def test_the_death_of_the_fork_server_ends_a_loading_model(repository: Repository, start: Start, flag: Flag) -> None:
    repository.add("slow", NEVER_LOADS.format(inside=str(flag("inside")), never=str(flag("never"))))
    server = start(wait=False)
    eventually(flag("inside").exists)
    server.fork_server().kill()
    assert server.wait(10) == 1
    assert server.lines("failed to load 'slow'")


def test_without_strict_readiness_a_dead_model_leaves_the_server_ready(
    repository: Repository, start: Start, flag: Flag
) -> None:
    repository.add("die", MORTAL.format(started=str(flag("started")), go=str(flag("go")), death="os._exit(1)"))
    server = start("--strict-readiness=false")
    server.post("die", [13.0])
    assert not server.ready("die")
    assert server.ready()
    flag("go").touch()
    eventually(lambda: server.ready("die"))


def killed_server_leaves_nothing(server: Server) -> None:
    stubs = server.stubs()
    assert stubs
    assert server.shm()
    server.signal(signal.SIGKILL)
    assert server.wait() == -signal.SIGKILL
    eventually(lambda: not server.left(), 10, "processes, segments and the run directory gone")


def test_a_killed_server_leaves_neither_stub_nor_segment(repository: Repository, start: Start) -> None:
    repository.add("ident", instances=2)
    repository.add("slow", DIES_OF_13.format(seconds=30))
    server = start()
    server.post("ident", [1.0] * 100_000)
    background = Background(1, lambda: failing(lambda: server.post("slow", [1.0])))
    eventually(lambda: len(server.shm()) >= 3)
    killed_server_leaves_nothing(server)
    background.stop()


def failing(call: Callable[[], Answer]) -> str:
    try:
        return str(call().status)
    except OSError:
        return "no answer"


def test_a_server_killed_while_it_loads_leaves_nothing(repository: Repository, start: Start, flag: Flag) -> None:
    repository.add("slow", NEVER_LOADS.format(inside=str(flag("inside")), never=str(flag("never"))))
    server = start(wait=False)
    eventually(flag("inside").exists)
    killed_server_leaves_nothing(server)


def test_what_a_model_has_started_ends_with_it(repository: Repository, start: Start, flag: Flag) -> None:
    code = """
    def initialize(self, args):
        import subprocess
        self.child = subprocess.Popen(["sleep", "1000"])
        with open({pid!r}, "w") as file:
            file.write(str(self.child.pid))

    def execute(self, requests):
        os._exit(0)
    """
    repository.add("parent", code.format(pid=str(flag("pid"))))
    server = start()
    child = psutil.Process(int(flag("pid").read_text()))
    assert child.name() == "sleep"
    server.post("parent", [1.0])
    eventually(lambda: not child.is_running())
    eventually(server.ready)
    child = psutil.Process(int(flag("pid").read_text()))
    server.terminate()
    eventually(lambda: not child.is_running())


def test_the_server_exits_cleanly_although_a_model_is_killed_in_finalize(
    repository: Repository, start: Start, flag: Flag
) -> None:
    code = f"""
    def finalize(self):
        open({str(flag("inside"))!r}, "w").close()
        wait_for({str(flag("never"))!r})
    """
    repository.add("ident")
    repository.add("stubborn", code)
    server = start()
    stub = server.stub("stubborn")
    server.signal(signal.SIGTERM)
    eventually(flag("inside").exists)
    stub.kill()
    assert server.wait() == 0


def test_a_half_made_segment_of_a_dead_process_is_swept(repository: Repository, start: Start) -> None:
    """A stub that is killed while it starts leaves one now and then."""
    dead = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True, check=True).stdout.strip()
    segment = SHM / f"tensorbus-{dead}-{'0' * 32}"
    segment.write_bytes(bytes(4096))
    os.utime(segment, (0, 0))  # it might still get its header, were it new
    try:
        repository.add("ident")
        assert start().terminate() == 0
        assert not segment.exists()
    finally:
        segment.unlink(missing_ok=True)
