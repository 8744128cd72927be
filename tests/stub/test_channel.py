"""The stub's socket against libzmq's ROUTER."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from pathlib import Path
from typing import Callable, Iterator, List, Tuple

import pytest
import zmq
from _tensorbus_app.protocol import messages
from _tensorbus_app.stub.channel import Channel, Closed

from protocol.codec import decode_from_stub, encode
from protocol.messages import CANCEL, EXECUTE, Batch, Cancel, Execute, Log, Results

SIZES = [0, 1, 255, 256, 65_536, 3_000_000]
pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def router(tmp_path: Path) -> Iterator[zmq.Socket]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.linger = 0
        router.rcvhwm = 1
        router.bind(f"ipc://{tmp_path}/bus")
        yield router


@pytest.fixture
def channel(router: zmq.Socket, tmp_path: Path) -> Iterator[Channel]:
    channel = Channel(f"ipc://{tmp_path}/bus", "key")
    yield channel
    channel.close()


def log(text: str) -> messages.Log:
    return messages.Log(messages.LOG, "I", "model.py", 1, text)


def hear(router: zmq.Socket) -> Tuple[str, List[bytes]]:
    """The text of the next Log, and its frames."""
    key, header, *frames = router.recv_multipart()
    assert key == b"key"
    message = decode_from_stub(header)
    assert isinstance(message, Log)
    return message.text, frames


def test_it_is_known_what_nobody_has_received(router: zmq.Socket, channel: Channel) -> None:
    def receive() -> None:
        while not channel.has_come():
            time.sleep(0.001)
        while channel.receive(1) is None:
            pass

    channel.send(log("I am here"))
    hear(router)
    for count in (1, 2, 1):
        for number in range(count):
            router.send_multipart([b"key", encode(Cancel(CANCEL, [number]))])
        for _ in range(count):
            receive()
        assert not channel.has_come()


def test_messages_of_all_sizes_arrive_in_both_directions(router: zmq.Socket, channel: Channel) -> None:
    channel.send(messages.Results(messages.RESULTS, [], [], [], []), [os.urandom(size) for size in SIZES])
    key, header, *frames = router.recv_multipart()
    assert isinstance(decode_from_stub(header), Results) and [len(frame) for frame in frames] == SIZES
    router.send_multipart([key, encode(Execute(EXECUTE, [Batch(7, [])], [])), *frames])
    received = None
    while received is None:
        received = channel.receive()
    assert received.message.batches[0].id == 7
    assert [bytes(frame) for frame in received.frames] == frames
    assert not any(frame.readonly for frame in received.frames)
    for size in SIZES:
        channel.send(log("x" * size))
        assert hear(router) == ("x" * size, [])


def test_what_comes_together_is_read_one_by_one(router: zmq.Socket, channel: Channel) -> None:
    channel.send(log("hello"))
    hear(router)
    for number in range(100):
        router.send_multipart([b"key", encode(Cancel(CANCEL, [number]))])
    found = []
    while len(found) < 100:
        received = channel.receive(1000)
        if received is not None:
            found += received.message.requests
    assert found == list(range(100))
    assert channel.receive_now() is None


@pytest.mark.parametrize("threads", [0, 1])
def test_nothing_in_time(router: zmq.Socket, channel: Channel, threads: int) -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    if threads:
        thread.start()
    begin = time.monotonic()
    while time.monotonic() < begin + 0.1:
        assert channel.receive(20) is None
    assert channel.receive(0) is None and time.monotonic() < begin + 5
    over.set()
    if threads:
        thread.join()


def test_a_thread_may_wake_whoever_receives(channel: Channel) -> None:
    over = threading.Event()

    def wake() -> None:
        channel.wake()
        over.wait()

    thread = threading.Thread(target=wake)
    thread.start()
    assert channel.receive() is None
    over.set()
    thread.join()


def test_without_a_broker_there_is_no_channel(tmp_path: Path) -> None:
    gc.collect()  # what earlier tests have left
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(Closed):
            Channel(f"ipc://{tmp_path}/bus", "key")
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    "use", [Channel.receive, Channel.receive_now, lambda channel: channel.send(log("x" * 100_000))]
)
def test_a_broker_that_has_gone(router: zmq.Socket, channel: Channel, use: Callable[[Channel], object]) -> None:
    router.close()
    with pytest.raises(Closed):
        while True:
            use(channel)


def test_nothing_is_said_after_the_end(router: zmq.Socket, channel: Channel) -> None:
    channel.send(log("last"))
    channel.close()
    for use in (channel.receive, lambda: channel.send(log(""))):
        with pytest.raises(Closed):
            use()
    assert hear(router) == ("last", [])


def test_a_finalizer_never_waits(router: zmq.Socket, channel: Channel) -> None:
    sent = 0
    while channel.send_from_finalizer(log("x" * 10_000)):
        sent += 1
        assert sent < 10_000
    for _ in range(sent):
        assert hear(router) == ("x" * 10_000, [])


def said_by_a_signal_handler(channel: Channel, handler: Callable[[], None], size: int) -> None:
    """Sends so much that it must wait, and has ``handler`` run meanwhile."""
    before = signal.signal(signal.SIGALRM, lambda *_: handler())
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        for _ in range(20):
            channel.send(messages.Results(messages.RESULTS, [], [], [], []), [bytes(size)])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_what_a_signal_handler_says_comes_behind_what_is_being_said(router: zmq.Socket, channel: Channel) -> None:
    size = 1_000_000
    threading.Timer(0.5, lambda: received.extend(router.recv_multipart() for _ in range(21))).start()
    received: List[List[bytes]] = []
    said_by_a_signal_handler(channel, lambda: channel.send(log("alarm")), size)
    while len(received) < 21:
        time.sleep(0.01)
    kinds = [type(decode_from_stub(header)) for _, header, *_ in received]
    assert kinds.count(Log) == 1 and kinds.count(Results) == 20
    assert all(len(frame) == size for _, _, *frames in received for frame in frames)


def test_a_message_that_a_signal_handler_has_cut_off_ends_the_connection(channel: Channel) -> None:
    def handler() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        said_by_a_signal_handler(channel, handler, 1_000_000)
    with pytest.raises(Closed):
        channel.send(log("more"))
