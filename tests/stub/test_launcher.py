"""The launcher with its real fork server, real processes and real segments; the broker is a bare ROUTER."""

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import uvloop
import zmq

from protocol.codec import decode_from_stub
from protocol.interpreters import Interpreter
from protocol.messages import VERSION, Hello
from shm.segment import Segment
from stub.launcher import Launcher

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 20

# An "interpreter" that is run as one but does what a test wants: the launcher cannot tell.
FAKE_INTERPRETER = """#!{python}
import json, os, subprocess, sys, time
sys.path.insert(0, {root!r})
from shm.segment import Segment
segment = Segment.create({shm!r}, 1000)
child = subprocess.Popen(["sleep", "1000"])
said = dict(arguments=sys.argv[1:], environment=dict(os.environ), cwd=os.getcwd())
said.update(pid=os.getpid(), child=child.pid, segment=segment.name)
with open({said!r} + ".new", "w") as file:
    json.dump(said, file)
os.rename({said!r} + ".new", {said!r})
time.sleep(1000)
"""


class Host:
    """A launcher and the socket its stubs dial."""

    def __init__(self, directory: Path, router: zmq.Socket) -> None:
        self.directory = directory
        self.shm_directory = directory / "shm"
        self.shm_directory.mkdir()
        self.router = router
        self.printed: list[tuple[str, str]] = []
        self.exits: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
        self.launcher = Launcher(
            f"ipc://{directory}/bus",
            str(directory),
            str(self.shm_directory),
            lambda *exit: self.exits.put_nowait(exit),
            self._print,
        )

    def _print(self, title: str, lines: list[str]) -> bool:
        self.printed += [(title, line) for line in lines]
        return True

    async def hello(self) -> tuple[str, Hello]:
        """The next stub to say so, and what it says."""
        assert await asyncio.to_thread(self.router.poll, DEADLINE_S * 1000), "no Hello"
        key, header = self.router.recv_multipart()
        return key.decode(), decode_from_stub(header)

    async def spawn(self, key: str = "m_0", **options: Interpreter) -> int:
        """The pid of a new stub that has said Hello."""
        self.launcher.spawn(key, key, **options)
        said_by, hello = await self.hello()
        assert said_by == key
        return hello.pid

    async def exit(self) -> tuple[str, int]:
        return await asyncio.wait_for(self.exits.get(), DEADLINE_S)

    async def spawn_fake(self, key: str = "fake_0") -> dict:
        """Start the interpreter above; returns what it has to say."""
        path, said = self.directory / f"{key}-python", self.directory / f"{key}.json"
        text = FAKE_INTERPRETER.format(
            python=sys.executable, root=str(ROOT), shm=str(self.shm_directory), said=str(said)
        )
        path.write_text(text)
        path.chmod(stat.S_IRWXU)
        self.launcher.spawn(key, key, Interpreter(str(path), "/env", ["/more"]))
        await until(said.exists)
        return json.loads(said.read_text())

    def segments(self) -> set[str]:
        return {path.name for path in self.shm_directory.iterdir()}

    def fork_server(self) -> psutil.Process:
        (found,) = psutil.Process().children()
        return found


async def until(condition, deadline_s: float = DEADLINE_S) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "too late"
        await asyncio.sleep(0.002)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def host(tmp_path):
    """Runs a coroutine with a Host whose launcher has started, and closes it."""

    def run(test) -> None:
        with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
            router.linger = 0
            router.router_handover = True  # it may not have seen the end of the peer whose key is used again
            router.bind(f"ipc://{tmp_path}/bus")

            async def main() -> None:
                host = Host(tmp_path, router)
                await host.launcher.start()
                try:
                    await asyncio.wait_for(test(host), 3 * DEADLINE_S)
                finally:
                    await host.launcher.close()

            uvloop.run(main())  # as in the server
        assert not psutil.Process().children(recursive=True)

    return run


def test_a_spawned_stub_says_hello_under_its_key(host):
    async def test(host):
        host.launcher.spawn("m_0_0", "title")
        key, hello = await host.hello()
        assert key == "m_0_0"
        assert hello.version == VERSION

    host(test)


def test_the_process_list_shows_the_title(host):
    async def test(host):
        host.launcher.spawn("m_0_0", "resnet_0_1")
        _, hello = await host.hello()
        title = " ".join(psutil.Process(hello.pid).cmdline())
        assert "tensorbus stub: resnet_0_1" in title
        assert "triton_python_backend_stub" in title

    host(test)


def test_a_killed_stub_is_told_with_its_signal(host):
    async def test(host):
        await host.spawn("a")
        other = await host.spawn("b")
        host.launcher.kill("a")
        assert await host.exit() == ("a", -signal.SIGKILL)
        assert not is_gone(other)

    host(test)


def test_a_stub_that_exits_is_told_with_its_code(host):
    async def test(host):
        await host.spawn("a")
        host.router.send_multipart([b"a", b"no message"])
        assert await host.exit() == ("a", 2)

    host(test)


def test_a_death_is_told_within_milliseconds(host):
    async def test(host):
        delays = []
        for number in range(5):
            pid = await host.spawn(f"a_{number}")  # the socket may not know yet that the last one's has gone
            killed = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            await host.exit()
            delays.append(time.monotonic() - killed)
        assert sorted(delays)[2] < 0.1

    host(test)


def test_many_stubs_start_at_once(host):
    async def test(host):
        keys = {f"m_0_{number}" for number in range(20)}
        for key in keys:
            host.launcher.spawn(key, key)
        assert {(await host.hello())[0] for _ in keys} == keys

    host(test)


def test_a_key_in_use_is_refused(host):
    async def test(host):
        host.launcher.spawn("a", "a")
        with pytest.raises(ValueError):
            host.launcher.spawn("a", "a")

    host(test)


def test_a_key_can_be_used_again_as_soon_as_its_death_is_told(host):
    async def test(host):
        first = await host.spawn("a")
        told = asyncio.Event()

        def respawn(key, status):
            host.launcher.spawn(key, key)
            told.set()

        host.launcher._on_exit = respawn
        host.launcher.kill("a")
        await asyncio.wait_for(told.wait(), DEADLINE_S)
        key, hello = await host.hello()
        assert key == "a"
        assert hello.pid != first

    host(test)


def test_killing_the_dead_is_no_error(host):
    async def test(host):
        host.launcher.kill("nobody")
        await host.spawn("a")

    host(test)


def test_signals_for_the_server_do_not_end_stubs_or_the_fork_server(host):
    async def test(host):
        pid = await host.spawn("a")
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)
            host.fork_server().send_signal(number)
        assert psutil.Process(pid).is_running()
        await host.spawn("b")

    host(test)


# --- other interpreters -----------------------------------------------------------------------------------------


def test_another_interpreter_runs_the_stub_by_path(host):
    async def test(host):
        pid = await host.spawn("a", interpreter=Interpreter(sys.executable, sys.prefix))
        assert "tensorbus stub: a" in " ".join(psutil.Process(pid).cmdline())

    host(test)


def test_another_interpreter_gets_an_environment_that_is_activated_for_it(host, monkeypatch):
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, "" if name == "PYTHONHOME" else "/nowhere")
    monkeypatch.setenv("MY_ENV", "mine")

    async def test(host):
        said = await host.spawn_fake()
        assert said["environment"]["MY_ENV"] == "mine"
        assert not {"PYTHONPATH", "PYTHONHOME"} & said["environment"].keys()
        assert said["environment"]["VIRTUAL_ENV"] == "/env"
        assert said["environment"]["PATH"] == "/env/bin:" + os.environ["PATH"]
        assert said["environment"]["LD_LIBRARY_PATH"] == "/env/lib:/nowhere"
        assert said["cwd"] == os.getcwd()
        *named, packages = zip(*[iter(said["arguments"][1:])] * 2, strict=True)
        assert named == [("--bus", f"ipc://{host.directory}/bus"), ("--key", "fake_0"), ("--title", "fake_0")]
        assert packages == ("--packages", "/more")

    host(test)


def test_what_a_stub_says_comes_before_its_death_and_under_its_title(host):
    async def test(host):
        path = host.directory / "talker"
        path.write_text("#!/bin/sh\nseq 1000; echo wrong >&2; printf last\n")
        path.chmod(stat.S_IRWXU)
        for name in ("a", "b"):
            host.launcher.spawn(name, f"{name}:1 {name}_0", Interpreter(str(path), "/nowhere"))
        for _ in range(2):
            key, status = await host.exit()
            assert status == 0
            said = [line for title, line in host.printed if title == f"{key}:1 {key}_0"]
            assert said == [*map(str, range(1, 1001)), "wrong", "last"]

    host(test)


def test_who_outlives_a_stub_may_go_on_talking(host):
    async def test(host):
        path, away, go = host.directory / "leaver", host.directory / "away", host.directory / "go"
        survivor = f"touch {away}; until [ -e {go} ]; do sleep 0.01; done; echo late"
        path.write_text(f"#!/bin/sh\nsetsid sh -c '{survivor}' &\nuntil [ -e {away} ]; do sleep 0.01; done\n")
        path.chmod(stat.S_IRWXU)
        host.launcher.spawn("a", "a_0", Interpreter(str(path), "/nowhere"))
        assert await host.exit() == ("a", 0)
        assert not host.printed
        go.touch()
        await until(lambda: host.printed == [("a_0", "late")])

    host(test)


def test_an_interpreter_that_cannot_be_run_is_told_as_a_death(host):
    async def test(host):
        host.launcher.spawn("a", "a_0", Interpreter("/nowhere/python", "/nowhere"))
        assert await host.exit() == ("a", 127)
        ((title, line),) = host.printed
        assert title == "a_0"
        assert line.endswith("cannot run /nowhere/python for a_0: No such file or directory")

    host(test)


# --- what the dead leave behind ---------------------------------------------------------------------------------


def test_a_dead_stub_leaves_no_segment_and_no_process(host):
    async def test(host):
        said = await host.spawn_fake()
        assert host.segments() == {said["segment"]}
        left_when_told = []
        host.launcher._on_exit = lambda key, status: left_when_told.append(host.segments())
        host.launcher.kill("fake_0")
        await until(lambda: left_when_told)
        assert left_when_told == [set()]
        await until(lambda: is_gone(said["child"]))

    host(test)


def test_what_a_stub_left_running_is_killed_and_reaped(host):
    async def test(host):
        said = await host.spawn_fake()
        os.kill(said["pid"], signal.SIGKILL)
        await host.exit()
        await until(lambda: not psutil.pid_exists(said["child"]))

    host(test)


def test_the_death_of_the_fork_server_ends_all_stubs_and_is_survived(host):
    async def test(host):
        pids = [await host.spawn("a"), await host.spawn("b")]
        said = await host.spawn_fake("c")
        host.fork_server().kill()
        assert {await host.exit() for _ in range(3)} == {(key, -signal.SIGKILL) for key in "abc"}
        assert all(is_gone(pid) for pid in pids)
        assert host.segments() == set()
        await until(lambda: is_gone(said["child"]))
        await host.spawn("a")

    host(test)


def test_a_fork_server_that_cannot_start_is_not_started_over_and_over(host, monkeypatch):
    async def test(host):
        await host.spawn("a")
        monkeypatch.setattr(sys, "executable", "/bin/false")
        host.fork_server().kill()
        assert await host.exit() == ("a", -signal.SIGKILL)
        await until(lambda: not psutil.Process().children())
        host.launcher.spawn("a", "a")  # one more try, as hopeless
        assert await host.exit() == ("a", -signal.SIGKILL)
        monkeypatch.undo()
        await host.spawn("a")

    host(test)


def test_close_ends_everything(host):
    async def test(host):
        pid = await host.spawn("a")
        said = await host.spawn_fake("b")
        await host.launcher.close()
        assert is_gone(pid)
        assert is_gone(said["child"])
        assert host.segments() == set()
        assert not psutil.Process().children()
        assert host.directory.exists()
        with pytest.raises(RuntimeError):
            host.launcher.spawn("c", "c")
        assert host.exits.empty()

    host(test)


SERVER = """
import asyncio, os, sys, zmq
sys.path.insert(0, {root!r})
from protocol.interpreters import Interpreter
from shm.segment import Segment
from stub.launcher import Launcher

async def main():
    router = zmq.Context().socket(zmq.ROUTER)
    router.bind({bus!r})
    launcher = Launcher({bus!r}, {run_dir!r}, {shm!r}, print, print)
    await launcher.start()
    segment = Segment.create({shm!r}, 1000)
    launcher.spawn("a", "a")
    launcher.spawn("b", "b", Interpreter({fake!r}, "/nowhere"))
    await asyncio.sleep(1000)

asyncio.run(main())
"""


def test_a_killed_server_leaves_nothing(tmp_path):
    run_dir, shm, said = tmp_path / "run", tmp_path / "shm", tmp_path / "said.json"
    run_dir.mkdir(mode=0o700)
    shm.mkdir()
    fake = tmp_path / "python"
    fake.write_text(FAKE_INTERPRETER.format(python=sys.executable, root=str(ROOT), shm=str(shm), said=str(said)))
    fake.chmod(stat.S_IRWXU)
    script = SERVER.format(
        root=str(ROOT), bus=f"ipc://{run_dir}/bus", run_dir=str(run_dir), shm=str(shm), fake=str(fake)
    )

    async def main() -> None:
        with subprocess.Popen([sys.executable, "-c", script]) as server:
            try:
                await until(said.exists)
                await until(lambda: len(psutil.Process(server.pid).children(recursive=True)) == 4)
                processes = psutil.Process(server.pid).children(recursive=True)
                assert len(list(shm.iterdir())) == 2
            finally:
                server.kill()
            await until(lambda: all(is_gone(process.pid) for process in processes), 10)
        await until(lambda: not run_dir.exists())
        assert list(shm.iterdir()) == []

    asyncio.run(main())


def test_the_segments_of_others_are_left_alone(host):
    async def test(host):
        mine = Segment.create(str(host.shm_directory), 1000)
        await host.spawn("a")
        host.launcher.kill("a")
        await host.exit()
        assert host.segments() == {mine.name}
        mine.close()
        mine.unlink()

    host(test)
