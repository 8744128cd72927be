import os
import threading
from collections.abc import Iterator

import pytest

from tensorbus.log_outlet import Outlet


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        os.close(fd)


def fill(outlet: Outlet, line: bytes) -> int:
    """How many lines were taken before one was dropped."""
    taken = 0
    while True:
        outlet.write(line)
        if outlet.dropped:
            return taken
        taken += 1


def read_lines(fd: int, count: int) -> list[bytes]:
    data = b""
    while data.count(b"\n") < count:
        data += os.read(fd, 1 << 20)
    return data.splitlines()


@pytest.mark.parametrize("length", [10, 4095, 9999])
def test_a_pipe_that_nobody_reads_costs_lines_and_blocks_nobody(pipe: tuple[int, int], length: int) -> None:
    outlet = Outlet(pipe[1])
    taken = fill(outlet, b"x" * length + b"\n")
    for _ in range(1000):
        outlet.write(b"more\n")
    assert outlet.dropped == 1001
    os.set_blocking(pipe[0], False)
    lines = os.read(pipe[0], 1 << 20).splitlines()
    outlet.write(b"last\n")
    lines += os.read(pipe[0], 1 << 20).splitlines()
    assert len(b"".join(lines)) == taken * length + len(b"last")


def test_a_reader_gets_every_line_whole_and_in_order(pipe: tuple[int, int]) -> None:
    outlet = Outlet(pipe[1])
    expected = [str(number).encode() * (number % 5000 + 1) for number in range(1000)]
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.extend(read_lines(pipe[0], len(expected))))
    reader.start()
    for line in expected:
        outlet.write(line + b"\n")
    reader.join(20)
    assert found == expected


def test_a_reader_that_is_gone_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    Outlet(writer).write(b"line\n")
    os.close(writer)
