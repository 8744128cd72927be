from __future__ import annotations

import contextlib
import ctypes
import signal
import threading
from pathlib import Path
from typing import Iterator, List

import pytest
import zmq
from _tensorbus_app.protocol import messages
from _tensorbus_app.stub.bus import Bus
from _tensorbus_app.stub.channel import Channel

from protocol.codec import encode
from protocol.messages import CANCEL, Cancel


@pytest.fixture
def router() -> Iterator[zmq.Socket]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.linger = router.sndhwm = 0
        yield router


@pytest.fixture
def bus(router: zmq.Socket, tmp_path: Path) -> Iterator[Bus]:
    address = "ipc://{}/bus".format(tmp_path)
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


@pytest.mark.timeout(60, method="thread")
def test_no_message_is_lost_where_a_signal_handler_raises(router: zmq.Socket, bus: Bus) -> None:
    """A model breaks off what takes too long by signal.setitimer, and was never told what had come at that moment."""
    count = 2000
    heard: List[int] = []
    bus.handlers[messages.Cancel] = lambda message, frames: heard.extend(message.requests)

    def alarm(*_: object) -> None:
        raise TimeoutError

    def say() -> None:
        for number in range(count):
            router.send_multipart([b"key", encode(Cancel(CANCEL, [number]))])

    bus.send(messages.Log(messages.LOG, "I", "model.py", 1, "hello"))
    router.recv_multipart()
    before = signal.signal(signal.SIGALRM, alarm)
    speaker = threading.Thread(target=say)
    speaker.start()
    is_over = False
    while not is_over:
        with contextlib.suppress(TimeoutError):
            while speaker.is_alive():
                signal.setitimer(signal.ITIMER_REAL, 0.0003)
                bus.wait(lambda: len(heard) == count, 0.1)
            signal.setitimer(signal.ITIMER_REAL, 0)
            is_over = True
    signal.signal(signal.SIGALRM, before)
    assert bus.wait(lambda: heard[-1:] == [count - 1], 5.0)
    assert heard == list(range(count))


class BreakOff(BaseException):
    """What a library raises in a thread that takes too long."""


@pytest.mark.timeout(60, method="thread")
def test_no_message_is_lost_where_another_thread_raises_in_one_that_waits(router: zmq.Socket, bus: Bus) -> None:
    count = 5000
    heard: List[int] = []
    bus.handlers[messages.Cancel] = lambda message, frames: heard.extend(message.requests)
    bus.send(messages.Log(messages.LOG, "I", "model.py", 1, "hello"))
    router.recv_multipart()
    main, error = ctypes.c_ulong(threading.get_ident()), ctypes.py_object(BreakOff)

    def say() -> None:
        for number in range(count):
            router.send_multipart([b"key", encode(Cancel(CANCEL, [number]))])
            if number % 5 == 0:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(main, error)

    speaker = threading.Thread(target=say)
    is_over = False
    while not is_over:
        with contextlib.suppress(BreakOff):
            if speaker.ident is None:
                speaker.start()
            while speaker.is_alive():
                bus.wait(lambda: len(heard) == count, 0.1)
            is_over = True
    assert bus.wait(lambda: heard[-1:] == [count - 1], 5.0)
    assert heard == list(range(count))
