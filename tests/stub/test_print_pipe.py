import asyncio
import os

import pytest
import uvloop

from stub.print_pipe import LONGEST_LINE, Lines, PrintPipe

DEADLINE_S = 10


def test_lines_are_put_together_from_pieces():
    lines = Lines()
    assert lines.feed(b"one\ntwo\nthr") == ["one", "two"]
    assert lines.feed(b"ee") == []
    assert lines.feed(b"\n\nfour") == ["three", ""]
    assert lines.end() == ["four"]
    assert lines.end() == []


def test_what_is_no_text_is_told_by_its_numbers():
    assert Lines().feed(b"caf\xc3\xa9 \xff\n") == ["café \\xff"]


def test_an_endless_line_comes_in_parts_and_no_character_is_cut():
    lines = Lines()
    text = "é" * LONGEST_LINE
    parts = lines.feed(b"x" + text.encode()) + lines.end()
    assert len(parts) == 3
    assert "".join(parts) == "x" + text


class Log:
    """Takes lines; as long as ``full`` it says that there is no room."""

    def __init__(self):
        self.lines = []
        self.full = False

    def __call__(self, source, lines):
        self.lines += lines
        return not self.full

    async def has(self, count):
        async with asyncio.timeout(DEADLINE_S):
            while len(self.lines) < count:
                await asyncio.sleep(0.001)


@pytest.fixture
def printing():
    """Runs a coroutine with the log, the pipe and the end to write to, which the coroutine closes."""

    def run(test):
        async def main():
            ours, theirs = os.pipe()
            log = Log()
            pipe = PrintPipe(ours, "m:1 m_0", log)
            await test(log, pipe, theirs)
            pipe.close()

        uvloop.run(main())

    return run


def test_lines_come_as_they_are_written_and_the_last_with_the_end(printing):
    async def test(log, pipe, theirs):
        os.write(theirs, b"one\ntw")
        await log.has(1)
        assert log.lines == ["one"]
        os.close(theirs)
        await log.has(2)
        assert log.lines == ["one", "tw"]
        assert not pipe.is_open

    printing(test)


def test_drain_reads_what_is_there_and_does_not_wait_for_the_end(printing):
    async def test(log, pipe, theirs):
        os.write(theirs, b"x" * 99 + b"\n")
        os.write(theirs, b"last")
        pipe.drain()
        assert log.lines == ["x" * 99]
        assert pipe.is_open
        os.close(theirs)
        pipe.drain()
        assert log.lines[1:] == ["last"]
        assert not pipe.is_open

    printing(test)


def test_a_flood_leaves_the_loop_its_turns(printing):
    async def test(log, pipe, theirs):
        count = 200_000
        writing = asyncio.create_task(asyncio.to_thread(os.write, theirs, b"0123456789\n" * count))
        longest = 0
        async with asyncio.timeout(DEADLINE_S):
            while len(log.lines) < count:
                before = len(log.lines)
                await asyncio.sleep(0)
                longest = max(longest, len(log.lines) - before)
        await writing
        os.close(theirs)
        assert longest <= 2 * 16384 / 11

    printing(test)


def test_while_the_log_has_no_room_the_writer_waits(printing):
    async def test(log, pipe, theirs):
        log.full = True
        os.set_blocking(theirs, False)
        os.write(theirs, b"first\n")
        await log.has(1)
        written = 0
        with pytest.raises(BlockingIOError):
            while True:
                written += os.write(theirs, b"x" * 4095 + b"\n")
        log.full = False
        await log.has(1 + written // 4096)
        os.close(theirs)

    printing(test)
