from __future__ import annotations

import threading
from pathlib import Path
from typing import Iterator, List

import pytest
import zmq
from _tensorbus_app.stub.bus import Bus
from _tensorbus_app.stub.channel import Channel


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    address = "ipc://{}/bus".format(tmp_path)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.linger = 0
        router.bind(address)
        channel = Channel(address, "key")
        yield Bus(channel)
        channel.close()


@pytest.mark.timeout(20)
def test_the_main_thread_does_not_queue_behind_a_thread_that_reads_from_now_on(bus: Bus) -> None:
    """It had looked whether somebody reads just before somebody did, and slept for ever."""
    happened: List[bool] = []
    has_begun, may_end = threading.Event(), threading.Event()

    def read() -> None:
        with bus._reading:
            has_begun.set()
            may_end.wait()

    def begin() -> None:
        bus._reader = reader
        happened.append(True)
        bus.nudge()

    reader = threading.Thread(target=read)
    reader.start()
    has_begun.wait()
    threading.Timer(0.05, begin).start()
    assert bus.wait(lambda: happened)
    may_end.set()
    reader.join()
