"""A model that cannot be loaded: the server says why, and never waits for what will not come."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.conftest import IDENTITY, Repository, Server, Start, eventually

WAYS = {  # methods of the model, or the whole of its file; what the reason must hold
    "initialize raises": ('def initialize(self, args):\n    raise ValueError("no weights")', "ValueError: no weights"),
    "initialize exits": ("def initialize(self, args):\n    sys.exit(3)", "SystemExit"),
    "initialize ends the process": (
        "def initialize(self, args):\n    os._exit(3)",
        "Stub process 'bad_0_0' is not healthy.",
    ),
    "initialize is killed": (
        "def initialize(self, args):\n    os.kill(os.getpid(), signal.SIGKILL)",
        "is not healthy.",
    ),
    "an import fails": ("import a_module_that_is_not_there", "No module named 'a_module_that_is_not_there'"),
    "a syntax error": ("def execute(self, requests):\n    return [", "SyntaxError"),
    "auto_complete_config raises": (
        '@staticmethod\ndef auto_complete_config(config):\n    raise ValueError("no shape")',
        "ValueError: no shape",
    ),
    "auto_complete_config ends the process": (
        "@staticmethod\ndef auto_complete_config(config):\n    os._exit(3)",
        "Stub process 'bad' is not healthy.",
    ),
}


# Of instances that are inside at the same time one makes a note; the model "later" comes up at its second try.
ALONE = """
def initialize(self, args):
    try:
        os.mkdir(%r)
        time.sleep(0.1)
        os.rmdir(%r)
    except FileExistsError:
        open(%r, "w").close()
    if args["model_name"] == "later" and not os.path.exists(%r):
        open(%r, "w").close()
        raise ValueError("not yet")
"""


def ends_with_1(server: Server, timeout_s: float = 10) -> None:
    assert server.wait(timeout_s) == 1
    assert not server.lines("Started")


@pytest.mark.parametrize("way", WAYS)
def test_by_default_a_model_that_fails_to_load_ends_the_server(repository: Repository, start: Start, way: str) -> None:
    """An exception during start-up left the server waiting for ever."""
    code, reason = WAYS[way]
    repository.add("ident")
    repository.add("bad", code)
    server = start(wait=False)
    ends_with_1(server)
    assert server.lines("bad", reason)
    last = server.text().splitlines()[-1]
    assert last == "error: creating server: Internal - failed to load all models"


@pytest.mark.parametrize("way", WAYS)
def test_told_to_go_on_the_server_serves_the_others(repository: Repository, start: Start, way: str) -> None:
    code, reason = WAYS[way]
    repository.add("ident")
    repository.add("bad", code)
    server = start("--exit-on-error=false")

    assert server.post("ident", [1.0, 2.0]).data == [1.0, 2.0]
    row = server.index()["bad:1"]
    assert row["state"] == "UNAVAILABLE"
    assert reason in row["reason"]
    assert server.index()["ident:1"]["state"] == "READY"
    answer = server.post("bad", [1.0])
    assert (answer.status, answer.error) == (404, "Request for unknown model: 'bad' has no available versions")
    assert not server.ready("bad")
    assert not server.ready()
    assert server.ready("ident")
    eventually(lambda: not server.stubs("bad") and not server.zombies())


def test_the_log_shows_where_in_the_model_it_failed(repository: Repository, start: Start) -> None:
    repository.add("bad", 'def initialize(self, args):\n    raise ValueError("no weights")')
    server = start(wait=False)
    ends_with_1(server)
    assert server.lines("failed to load 'bad' version 1: Internal: ValueError: no weights", "model.py", "initialize")


def test_without_strict_readiness_a_failed_model_leaves_the_server_ready(repository: Repository, start: Start) -> None:
    repository.add("ident")
    repository.add("bad", 'def initialize(self, args):\n    raise ValueError("no weights")')
    server = start("--exit-on-error=false", "--strict-readiness=false")
    assert server.ready()
    assert not server.ready("bad")


@pytest.mark.parametrize(
    "death, cause", [("os._exit(3)", "exit code 3"), ("os.kill(os.getpid(), signal.SIGKILL)", "signal 9")]
)
def test_the_log_shows_how_a_process_ended_that_could_not_say_why(
    repository: Repository, start: Start, death: str, cause: str
) -> None:
    repository.add("bad", f"def initialize(self, args):\n    {death}")
    server = start(wait=False)
    ends_with_1(server)
    assert server.lines("bad_0_0", cause)


def test_a_slow_model_does_not_hold_back_the_news_that_another_fails(repository: Repository, start: Start) -> None:
    """The others are loaded to their end, though; only then the server exits."""
    repository.add("bad", 'def initialize(self, args):\n    raise ValueError("no weights")')
    repository.add("slow", "def initialize(self, args):\n    time.sleep(2)")
    began = time.monotonic()
    server = start(wait=False)
    eventually(lambda: server.lines("failed to load 'bad'"), 10)
    assert not server.lines("successfully loaded 'slow'")
    ends_with_1(server)
    assert server.lines("successfully loaded 'slow'")
    assert time.monotonic() - began < 10


def test_while_models_load_the_log_shows_what_is_awaited(repository: Repository, start: Start) -> None:
    repository.add("slow", f"def initialize(self, args):\n    time.sleep(6)\n{IDENTITY}")
    server = start()
    assert server.lines("still loading", "slow")


def test_a_config_that_cannot_be_read_is_told_and_the_others_load(repository: Repository, start: Start) -> None:
    repository.add("ident")
    repository.add("bad", config="this is no config {")
    server = start("--exit-on-error=false")
    assert server.lines("Poll failed for model directory 'bad': failed to read text proto from", "bad/config.pbtxt")
    assert server.post("ident", [1.0]).data == [1.0]
    assert server.post("bad", [1.0]).status == 404
    assert server.index()["bad:"] == {"name": "bad"}
    assert not server.ready()


def test_loads_come_one_by_one_and_are_tried_again_as_the_flags_say(
    repository: Repository, start: Start, flag: Callable[[str], Path]
) -> None:
    names = ("a", "b", "later")
    for name in names:
        repository.add(
            name, ALONE % (*[str(flag("inside"))] * 2, str(flag("met")), *[str(flag("tried"))] * 2) + IDENTITY
        )
    server = start("--model-load-thread-count=1", "--model-load-retry-count=1")
    assert [server.post(name, [1.0]).data for name in names] == [[1.0]] * 3
    assert not flag("met").exists()
    assert len(server.lines("failed to load 'later' version 1: Internal: ValueError: not yet")) == 1
    assert len(server.lines("successfully loaded 'later'")) == 1


def test_if_one_instance_of_a_model_fails_all_of_it_is_taken_back(repository: Repository, start: Start) -> None:
    code = """
    def initialize(self, args):
        if args["model_instance_name"].endswith("_2"):
            raise ValueError("one too many")
    """
    repository.add("bad", code, instances=3)
    server = start("--exit-on-error=false")
    assert "one too many" in server.index()["bad:1"]["reason"]
    eventually(lambda: not server.stubs("bad"))


def test_a_model_folder_without_a_model_file_is_told(repository: Repository, start: Start) -> None:
    (repository.add("bad") / "model.py").unlink()
    server = start("--exit-on-error=false")
    row = server.index()["bad:1"]
    assert row["state"] == "UNAVAILABLE"
    assert "model.py" in row["reason"]
