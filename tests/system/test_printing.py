"""What models print, and how they crash, is in the server's log."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.system.conftest import Repository, Start, eventually

FLOOD = """
def execute(self, requests):
    for request in requests:
        for number in range(int(values(request)[0])):
            print(number, "x" * 100)
    return [respond(request, values(request)) for request in requests]
"""


def test_a_printed_line_is_in_the_log_as_it_is_and_says_whose_it_is(repository: Repository, start: Start) -> None:
    code = """
    def initialize(self, args):
        print('{"json": "as it is \\\\ \\'quoted\\'"}')
        os.system("echo from a child")
        sys.stderr.write("half a ")
        sys.stderr.flush()
        print("line, caf\\u00e9", file=sys.stderr)
        os.write(1, b"last")

    def execute(self, requests):
        return [respond(request, values(request)) for request in requests]
    """
    repository.add("m", code, instances=2)
    server = start()
    for instance in ("m_0_0", "m_0_1"):
        head = re.compile(rf"I\d{{4}} [\d:.]+ {server.process.pid} m:1 {instance}\] ")
        lines = [head.sub("", line) for line in server.text().splitlines() if head.match(line)]
        assert lines == ["""{"json": "as it is \\ 'quoted'"}""", "from a child", "half a line, café"]
    assert server.terminate() == 0
    assert len(server.lines("] last")) == 2  # no newline ended it; the process did


def test_printing_does_not_depend_on_the_log_settings(
    repository: Repository, start: Start, flag: Callable[[str], Path]
) -> None:
    code = """
    @staticmethod
    def auto_complete_config(config):
        print("completing")
        return config

    def initialize(self, args):
        print("hello")

    def execute(self, requests):
        return [respond(request, values(request)) for request in requests]
    """
    repository.add("m", code)
    log = flag("server.log")
    server = start("--log-info=false", f"--log-file={log}", wait=False)
    eventually(lambda: log.exists() and "m:1 m_0_0] hello\n" in log.read_text())
    assert "m:1 auto_complete_config] completing\n" in log.read_text()
    assert "hello" not in server.text()


def test_the_last_words_of_a_crash_come_before_the_news_of_it(repository: Repository, start: Start) -> None:
    code = """
    def execute(self, requests):
        import ctypes
        print("about to crash")
        ctypes.string_at(0)
    """
    repository.add("m", code)
    server = start()
    server.post("m", [1.0])
    eventually(lambda: server.lines("a stub process died"))
    text = server.text()
    places = [
        text.index(part) for part in ("about to crash", "Segmentation fault", "in execute", "a stub process died")
    ]
    assert places == sorted(places)


def test_what_a_model_raises_is_logged_with_its_lines_and_causes(repository: Repository, start: Start) -> None:
    code = """
    def execute(self, requests):
        try:
            {}["key"]
        except KeyError as error:
            raise ValueError("no luck") from error

    def finalize(self):
        raise RuntimeError("no end")
    """
    repository.add("m", code)
    server = start()
    error = server.post("m", [1.0]).error
    assert "message: ValueError: no luck\n\nAt:\n  " in error
    assert "KeyError" not in error
    (line,) = eventually(lambda: server.lines("Traceback"))
    assert re.match(r"E.* model\.py:\d+\] ", line)
    for part in ('{}[\\"key\\"]', "KeyError: 'key'", "direct cause", 'raise ValueError(\\"no luck\\") from error'):
        assert part in line
    assert server.terminate() == 0
    assert server.lines("Traceback", 'raise RuntimeError(\\"no end\\")')


def test_a_syntax_error_is_shown_with_its_line(repository: Repository, start: Start) -> None:
    folder = repository.add("m")
    (folder / "model.py").write_text("class TritonPythonModel:\n    def execute(self requests): pass\n")
    server = start("--exit-on-error=false")
    assert server.lines("def execute(self requests): pass", "SyntaxError")


def test_a_model_that_prints_without_end_waits_and_the_server_does_not(repository: Repository, start: Start) -> None:
    repository.add("m", FLOOD)
    repository.add("other")
    server = start()
    server.post("m", [10.0])
    longest = 0.0
    lines = 200_000  # 20 MB
    with ThreadPoolExecutor(1) as pool:
        flood = pool.submit(server.post, "m", [float(lines)])
        while not flood.done():
            began = time.monotonic()
            assert server.post("other", [1.0]).status == 200
            longest = max(longest, time.monotonic() - began)
    assert flood.result().status == 200
    eventually(lambda: server.lines(f"] {lines - 1} xxx"))
    assert len(server.lines("] ", " xxxx")) == lines + 10
    assert longest < 1.0
