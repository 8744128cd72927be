"""Tensors that their reader cannot look at are asked of their owners."""

from __future__ import annotations

import pytest

from broker.remote.fetches import Fetches, owner_of
from protocol.messages import Handle
from protocol.services import Fetched


def handle(owner: str, nbytes: int = 4, offset: int = 128) -> Handle:
    return Handle(f"tensorbus-1-{owner}{'0' * 24}", offset, nbytes)


class Bench:
    def __init__(self) -> None:
        self.asked: list = []
        self.got: list = []
        self.unreachable: set[str] = set()
        self.fetches = Fetches(self._send)

    def _send(self, service, message) -> bool:
        self.asked.append((service, message))
        return service not in self.unreachable

    def begin(self, *handles: Handle) -> None:
        self.fetches.begin(list(handles), self.got.append)


@pytest.fixture
def bench():
    return Bench()


def test_the_owner_is_in_the_name_of_the_segment():
    assert owner_of(handle("0123abcd")) == "0123abcd"
    assert owner_of(Handle("", 0, 0)) == ""


def test_each_owner_is_asked_once_and_the_frames_come_in_the_order_of_the_handles(bench):
    bench.begin(handle("aaaaaaaa"), handle("bbbbbbbb"), handle("aaaaaaaa", offset=256))
    (a, of_a), (b, of_b) = bench.asked
    assert (a, len(of_a.handles), b, len(of_b.handles)) == ("aaaaaaaa", 2, "bbbbbbbb", 1)
    bench.fetches.fetched(b, Fetched("F", of_b.number), [b"bbbb"])
    assert bench.got == []
    bench.fetches.fetched(a, Fetched("F", of_a.number), [b"1111", b"3333"])
    assert bench.got == [[b"1111", b"bbbb", b"3333"]]


def test_what_its_owner_has_not_got_is_empty(bench):
    bench.begin(handle("aaaaaaaa"))
    bench.fetches.fetched("aaaaaaaa", Fetched("F", bench.asked[0][1].number, "no such segment"), [])
    assert bench.got == [[b""]]


def test_a_frame_of_another_size_is_not_taken(bench):
    bench.begin(handle("aaaaaaaa"))
    bench.fetches.fetched("aaaaaaaa", Fetched("F", bench.asked[0][1].number), [b"too long"])
    assert bench.got == [[b""]]


def test_nobody_waits_for_an_owner_that_is_gone(bench):
    bench.unreachable.add("bbbbbbbb")
    bench.begin(handle("bbbbbbbb"), handle("aaaaaaaa"))
    bench.fetches.gone("aaaaaaaa")
    assert bench.got == [[b"", b""]]


def test_what_lies_in_memory_of_the_brokers_own_is_there_at_once(bench):
    bench.fetches.owns("aaaaaaaa", lambda handle: bytes(handle.nbytes))
    bench.begin(handle("aaaaaaaa", 2))
    assert (bench.got, bench.asked, bench.fetches.total) == ([[b"\0\0"]], [], 0)
    bench.begin(handle("aaaaaaaa", 3), handle("bbbbbbbb"))
    bench.fetches.fetched("bbbbbbbb", Fetched("F", bench.asked[0][1].number), [b"bbbb"])
    assert bench.got[1:] == [[b"\0\0\0", b"bbbb"]]


def test_only_the_owner_can_answer_and_only_once(bench):
    bench.begin(handle("aaaaaaaa"))
    number = bench.asked[0][1].number
    bench.fetches.fetched("cccccccc", Fetched("F", number), [b"fake"])
    bench.fetches.fetched("aaaaaaaa", Fetched("F", number), [b"true"])
    bench.fetches.fetched("aaaaaaaa", Fetched("F", number), [b"late"])
    assert bench.got == [[b"true"]]
