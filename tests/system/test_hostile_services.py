"""Services that are broken or hostile, though they may join: nobody else suffers, and the log has one line on each.

Each is a bare socket that says what no gateway or stub host of ours would.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psutil
import pytest
import zmq

from protocol.codec import decode_to_service, encode
from protocol.messages import Handle, Request, TensorRef
from protocol.services import (
    ASK,
    DIED,
    FETCHED,
    FROM_STUBS,
    GATEWAY,
    HOLDS,
    JOIN,
    NEW_REQUESTS,
    PROVED,
    READ,
    STUB_HOST,
    UNANSWERED,
    VERSION,
    WITHDRAWN,
    Answers,
    Ask,
    Died,
    Fetched,
    FromStubs,
    HeldStub,
    Holds,
    Join,
    NewRequests,
    Proved,
    Read,
    Refused,
    Said,
    Unanswered,
    Welcome,
    Withdrawn,
    first_request,
)
from shm.segment import default_directory
from shm.store import Reader
from tests.system.conftest import Repository, eventually
from tests.system.scaled_stack import ScaledStack, Service, ready, scaled_stack

pytestmark = pytest.mark.usefixtures("all_in_shared_memory")

NOWHERE = Handle("", 0, 0)


class Peer:
    """It has joined as ``role``, unless told otherwise; with ``shares`` as one of this host's memory."""

    def __init__(self, address: str, role: str, joins: bool = True, shares: bool = False) -> None:
        self.service = secrets.token_hex(4)
        self.role = role
        self.shares = shares
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.ROUTING_ID, self.service.encode())
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(address)
        if joins:
            self.join()

    def join(self) -> None:
        nonce = secrets.token_bytes(32)
        self.say(Join(JOIN, VERSION, "tensorbus", self.role, self.service, "hostile", NOWHERE, nonce, ["none"]))
        probes = self.hear(Welcome).probes if self.shares else {}
        reader = Reader(default_directory())
        self.say(Proved(PROVED, {service: bytes(reader.view(*probe)) for service, probe in probes.items()}))
        reader.close()

    def say(self, message: Any, frames: Sequence[bytes] = ()) -> None:
        self._socket.send_multipart([message if isinstance(message, bytes) else encode(message), *frames])

    def hear(self, kind: type, timeout_s: float = 10.0) -> Any:
        """The next message of this kind."""
        for _ in range(1000):
            assert self._socket.poll(timeout_s * 1000), f"no {kind.__name__}"
            message = decode_to_service(self._socket.recv_multipart()[0])
            if isinstance(message, kind):
                return message
        raise AssertionError(f"no {kind.__name__}")

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScaledStack]:
    path = tmp_path_factory.mktemp("hostile")
    repository = Repository(path / "models")
    repository.path.mkdir()
    repository.add("identity")
    with scaled_stack(repository, path) as stack:
        stack.broker()
        stack.stub_host()
        ready(stack.gateway(), "identity")
        yield stack


@pytest.fixture
def peer(stack: ScaledStack) -> Iterator[Callable[..., Peer]]:
    peers: list[Peer] = []

    def join(role: str, **options: Any) -> Peer:
        peers.append(Peer(stack.address, role, **options))
        return peers[-1]

    yield join
    for one in peers:
        one.close()


def of_kind(stack: ScaledStack, kind: str) -> Service:
    (service,) = [one for one in stack.services if one.kind == kind]
    return service


def nobody_else_suffers(stack: ScaledStack) -> None:
    gateway = of_kind(stack, "gateway")
    stubs = of_kind(stack, "stub").stubs("identity")
    for number in range(20):
        assert gateway.post("identity", [number]).data == [number]
    assert of_kind(stack, "stub").stubs("identity") == stubs
    assert not stack_errors(stack)


def stack_errors(stack: ScaledStack) -> list[str]:
    """That somebody else than a peer has been found at fault, or the broker itself."""
    return [
        line
        for line in of_kind(stack, "broker").text().splitlines()
        if ("Traceback" in line and "model.py" not in line.split("]")[0])
        or ("a service is lost" in line and "hostile" not in line)
    ]


def is_refused_once(stack: ScaledStack, peer: Peer) -> None:
    """It is told why, and the log has it unless it has had too much of it."""
    assert peer.hear(Refused).reason
    broker = of_kind(stack, "broker")
    eventually(lambda: {"tensorbus_broker_gateways 1", "tensorbus_broker_stub_hosts 1"} <= set(broker.exposition()))
    assert len(broker.lines("a service broke the protocol", "service=" + peer.service)) <= 1
    nobody_else_suffers(stack)


def request(peer: Peer, number: int = 0, place: Any = 0, **fields: Any) -> Request:
    given: dict[str, Any] = {"id": first_request(peer.service) + number, "model": "identity", "version": 1, **fields}
    given.setdefault("inputs", [TensorRef("IN", "FP32", [1], place)])
    return Request(**given)


BROKEN_SUBMITTED: dict[str, Callable[[Peer], tuple[list[tuple[Request, int]], list[bytes]]]] = {
    "a frame beyond its own": lambda peer: ([(request(peer, place=1), 1)], [b"1234"]),
    "more frames than there are": lambda peer: ([(request(peer), 1)], []),
    "a count beyond all bounds": lambda peer: ([(request(peer, place=1 << 60), 1 << 62)], [b"1234"]),
    "a count below 0": lambda peer: ([(request(peer), -1), (request(peer, 1), 1)], [b"1234"]),
    "an id twice": lambda peer: ([(request(peer), 1), (request(peer), 1)], [b"1234", b"1234"]),
    "an id of another gateway": lambda peer: ([(request(peer, number=1 << 40), 1)], [b"1234"]),
    "an id below 0": lambda peer: ([(request(peer, id=-5), 1)], [b"1234"]),
    "an id beyond 64 bits": lambda peer: ([(request(peer, id=(1 << 64) - 1), 1)], [b"1234"]),
}


@pytest.mark.parametrize("what", BROKEN_SUBMITTED)
def test_a_gateway_that_submits_what_is_none_is_refused(stack, peer, what):
    one = peer(GATEWAY)
    requests, frames = BROKEN_SUBMITTED[what](one)
    one.say(NewRequests(NEW_REQUESTS, requests), frames)
    is_refused_once(stack, one)


WRONG_REQUESTS: dict[str, Callable[[Peer], tuple[Request, list[bytes]]]] = {
    "a frame of another size": lambda peer: (request(peer), [b"12345"]),
    "no such segment": lambda peer: (request(peer, place=Handle("tensorbus-1-" + "0" * 32, 0, 4)), []),
    "a segment of no form": lambda peer: (request(peer, place=Handle("../../etc/passwd", 0, 4)), []),
    "a shape below 0": lambda peer: (request(peer, inputs=[TensorRef("IN", "FP32", [-1], 0)]), [b"1234"]),
    "a shape beyond all bounds": lambda peer: (
        request(peer, inputs=[TensorRef("IN", "FP32", [1 << 62, 1 << 62], 0)]),
        [b"1234"],
    ),
    "no such datatype": lambda peer: (request(peer, inputs=[TensorRef("IN", "FP99", [1], 0)]), [b"1234"]),
    "no such input": lambda peer: (request(peer, inputs=[TensorRef("IX", "FP32", [1], 0)]), [b"1234"]),
    "no inputs": lambda peer: (request(peer, inputs=[]), []),
    "no such model": lambda peer: (request(peer, model="none"), [b"1234"]),
    "no such version": lambda peer: (request(peer, version=7), [b"1234"]),
}


@pytest.mark.parametrize("what", WRONG_REQUESTS)
def test_a_request_that_a_gateway_should_have_refused_is_answered(stack, peer, what):
    """Gateways check what clients send; the broker relies on that for answers, but not for anybody's life."""
    one = peer(GATEWAY)
    wrong, frames = WRONG_REQUESTS[what](one)
    one.say(NewRequests(NEW_REQUESTS, [(wrong, len(frames))]), frames)
    assert [response.request for response, _, _ in one.hear(Answers).responses] == [wrong.id]
    nobody_else_suffers(stack)


SILLY_OF_GATEWAYS: dict[str, Callable[[Peer, str], Any]] = {
    "leases that it has not": lambda peer, key: Read(READ, [(key, number) for number in range(1, 200)]),
    "requests that it has not": lambda peer, key: Withdrawn(WITHDRAWN, list(range(100))),
    "unanswered ones of others": lambda peer, key: Unanswered(UNANSWERED, [1, 1 << 41, -1], ["deadbeef"]),
    "bytes that nobody wants": lambda peer, key: Fetched(FETCHED, 1),
}


@pytest.mark.parametrize("what", SILLY_OF_GATEWAYS)
def test_what_a_gateway_says_of_what_it_has_not_is_passed_over(stack, peer, what):
    one = peer(GATEWAY)
    one.say(SILLY_OF_GATEWAYS[what](one, key_of(stack)))
    one.say(Ask(ASK, 1, "ready"))
    one.hear(Said)
    nobody_else_suffers(stack)


def key_of(stack: ScaledStack) -> str:
    """Of the one stub: a gateway is told it with each answer whose outputs are on lease."""
    one = Peer(stack.address, GATEWAY)
    one.say(NewRequests(NEW_REQUESTS, [(request(one), 1)]), [b"1234"])
    ((response, key, _),) = one.hear(Answers).responses
    assert not response.error
    one.close()
    return str(key)


WRONG_KINDS = {
    "a gateway that speaks for stubs": (GATEWAY, FromStubs(FROM_STUBS, [("1.1", b"x", 0)])),
    "a gateway that tells of a death": (GATEWAY, Died(DIED, "1.1", -9, None)),
    "a host that submits": (STUB_HOST, NewRequests(NEW_REQUESTS, [])),
    "a host that holds twice": (STUB_HOST, Holds(HOLDS, [])),
    "nothing that is known": (GATEWAY, b"\x91\xa1?"),
    "nothing at all": (GATEWAY, b""),
    "another type": (GATEWAY, b"\x92\xa1S\xc3"),
    "a length that lies": (GATEWAY, b"\x92\xa1S\xdd\xff\xff\xff\xff"),
}


@pytest.mark.parametrize("what", WRONG_KINDS)
def test_what_its_role_does_not_say_ends_a_service(stack, peer, what):
    role, message = WRONG_KINDS[what]
    one = peer(role)
    if isinstance(message, Holds):
        one.say(message)
    one.say(message)
    is_refused_once(stack, one)


def held(key: str, **fields: Any) -> HeldStub:
    return HeldStub(key, "identity", 1, "identity_0_0", "stamp", "{}", b"", [], [])._replace(**fields)


def test_a_host_cannot_speak_for_the_stub_of_another(stack, peer):
    key = key_of(stack)
    one = peer(STUB_HOST)
    one.say(Holds(HOLDS, []))
    one.say(Died(DIED, key, -9, None))
    one.say(FromStubs(FROM_STUBS, [(key, b"\x91\xa1?", 0), (key + "/x", b"", 0)]))
    nobody_else_suffers(stack)


@pytest.mark.parametrize("what", ["its key", "another process of its instance", "one key twice"])
def test_a_host_cannot_hold_what_another_runs(stack, peer, what):
    key = key_of(stack)
    index = key.partition(".")[0]
    keys = {"its key": [key], "another process of its instance": [index + ".77"], "one key twice": ["9.1", "9.1"]}
    one = peer(STUB_HOST)
    one.say(Holds(HOLDS, [held(each) for each in keys[what]]))
    is_refused_once(stack, one)


def test_a_gateway_that_reads_twice_what_it_has_of_another_broker_kills_no_stub(repository, tmp_path):
    repository.add("identity")
    with scaled_stack(repository, tmp_path) as stack:
        broker, host = stack.broker(), stack.stub_host()
        gateway = ready(stack.gateway(), "identity")
        (stub,) = host.stubs("identity")
        one = Peer(stack.address, GATEWAY, shares=True)
        one.say(NewRequests(NEW_REQUESTS, [(request(one), 1)]), [b"1234"])
        ((response, key, _),) = one.hear(Answers).responses
        assert response.lease
        broker.kill()
        broker = stack.broker()
        one.join()
        one.say(Unanswered(UNANSWERED, [], [], [(key, response.lease), (key, 77)]))
        ready(gateway, "identity")
        one.say(Read(READ, [(key, response.lease)] * 3 + [(key, number) for number in range(60, 80)]))
        one.say(Ask(ASK, 1, "ready"))
        one.hear(Said)
        for number in range(20):
            assert gateway.post("identity", [number]).data == [number]
        assert host.stubs("identity") == [stub]
        assert len(broker.lines("a gateway has read what it has not got", one.service)) == 1
        assert "tensorbus_broker_ignored_reads_total 21" in eventually(
            lambda: [line for line in broker.exposition() if "ignored_reads_total 2" in line]
        )
        one.close()


def test_joining_without_end_takes_no_memory(stack, peer):
    broker = psutil.Process(of_kind(stack, "broker").process.pid)
    nobody_else_suffers(stack)

    def flood() -> int:
        for _ in range(300):
            one = Peer(stack.address, STUB_HOST, joins=False)
            one.say(Join(JOIN, VERSION, "tensorbus", STUB_HOST, one.service, "hostile", NOWHERE, b"n" * 32, ["x"] * 50))
            one.hear(Welcome)
            one.close()
        return broker.memory_info().rss

    flood()
    before = flood()
    assert flood() < before + (8 << 20)
    nobody_else_suffers(stack)
