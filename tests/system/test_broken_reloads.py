"""A reload that goes wrong takes nothing down, whatever it is that is wrong; one that goes well replaces the old."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system.conftest import CONFIG, Background, Repository, Server, Start, eventually
from tests.system.test_model_control import EXPLICIT, NUMBER, change, load, state

pytestmark = pytest.mark.usefixtures("all_in_shared_memory")

BROKEN = {  # methods of the model; what the answer to the load must hold
    "syntax error": ("def execute(self, requests):\n    return [", "SyntaxError"),
    "import": ("import a_module_that_is_not_there", "No module named 'a_module_that_is_not_there'"),
    "initialize raises": ("def initialize(self, args):\n    raise ValueError('no weights')", "ValueError: no weights"),
    "initialize dies": ("def initialize(self, args):\n    os._exit(1)", "is not healthy."),
    "initialize hangs": (
        "def initialize(self, args):\n    time.sleep(60)",
        "loading took longer than the 0.5 s that LOAD_TIMEOUT_SECONDS of model 'm' allows.",
    ),
}
LIMIT = 'parameters { key: "LOAD_TIMEOUT_SECONDS" value { string_value: "0.5" } }\n'
# The old instance must have answered all that it was given when it finalizes.
GOOD = (
    NUMBER
    + """
def finalize(self):
    open(%r, "a").write("%s ")
"""
)


def failures(config: Path, code: Path) -> Iterator[tuple[int, str]]:
    """Breaks the model in one way after the other: status and text of what the load must say. Then all is well."""
    good_config, good_code = config.read_text(), (code / "model.py").read_text()
    for methods, text in BROKEN.values():
        change(code, methods)
        if "LOAD_TIMEOUT" in text:
            config.write_text(good_config + LIMIT)
        yield 400, text
        config.write_text(good_config)
    (code / "model.py").write_text(good_code)
    for text in ("nonsense", good_config.replace("TYPE_FP32", "FP32"), 'name: "other"\n' + good_config):
        config.write_text(text)
        yield 500, "failed to load 'm', failed to poll from model repository"
    config.write_text(good_config.replace("KIND_CPU", "KIND_GPU gpus: [77]"))
    yield 400, "gpu id 77"
    config.write_text(good_config)


def left(server: Server) -> tuple[int, int, int]:
    return len(server.processes()), len(server.shm()), len(server.stubs("m"))


def test_what_has_served_goes_on_serving(repository: Repository, start: Start, flag: Callable[[str], Path]) -> None:
    finalized = flag("finalized")
    code = repository.add("m", GOOD % (1, str(finalized), 1), config=CONFIG % 2)
    server = start(EXPLICIT, "--load-model=m")
    before = left(server)
    clients = Background(8, lambda: server.post("m", [0.0]).data)
    for status, text in failures(code.parent / "config.pbtxt", code):
        answer = load(server, "m")
        assert answer[0] == status and text in answer[1], (answer, text)
        assert state(server, "m:1")[0] == "READY" and server.ready() and server.ready("m")
        assert server.post("m", [0.0]).data == [1.0]
    change(code, GOOD % (2, str(finalized), 2))
    assert load(server, "m") == (200, "")
    assert server.post("m", [0.0]).data == [2.0]
    results = [value for (value,) in clients.stop()]  # raises for any that failed
    assert set(results) <= {1.0, 2.0} and len(results) > 50
    eventually(lambda: left(server) == before, 10, "processes and memory are those of before")
    assert finalized.read_text().split() == ["1", "1"]
