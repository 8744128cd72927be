"""What test_core_random does, while stub hosts join, leave and are lost."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from broker.events import Dismiss, HostJoined, HostLeaves, HostLost, Spawn
from tests.broker.conftest import Bench
from tests.broker.test_core_random import CoreMachine
from tests.random_events import run_random_events

HOSTS = ["a", "b", "c"]


class HostedBench(Bench):
    """``there`` are the hosts that have joined and are neither lost nor dismissed; "a" is at the start."""

    def __init__(self) -> None:
        super().__init__(hosted=True)
        self.there = ["a"]
        self.hosts: dict[str, str] = {}  # by key
        self.tell(HostJoined("a", ("*",)))

    def _carry_out(self, actions: list) -> None:
        for action in actions:
            if isinstance(action, Spawn):
                assert action.host in self.there
                self.hosts[action.key] = action.host
            elif isinstance(action, Dismiss):
                assert not [key for key in self.alive if self.hosts[key] == action.host]
                self.there.remove(action.host)
        super()._carry_out(actions)


class HostsMachine(CoreMachine):
    leaving: frozenset[str] = frozenset()

    @rule(host=st.sampled_from(HOSTS), models=st.sampled_from([("*",), ("m", "d"), ("[ns]",)]), turn=st.booleans())
    def join(self, host: str, models: tuple[str, ...], turn: bool) -> None:
        if host not in self.bench.there:
            self.bench.there.append(host)
            self.leaving -= {host}
            self.bench.tell(HostJoined(host, models))
            if turn:
                self.bench.turn()

    @precondition(lambda self: self.bench.there)
    @rule(data=st.data())
    def leave(self, data) -> None:
        host = data.draw(st.sampled_from(self.bench.there))
        if host not in self.leaving:
            self.leaving |= {host}
            self.bench.tell(HostLeaves(host))
            self.bench.turn()

    @precondition(lambda self: self.bench.there)
    @rule(data=st.data())
    def lose(self, data) -> None:
        host = data.draw(st.sampled_from(self.bench.there))
        for key in [key for key in self.bench.alive if self.bench.hosts[key] == host]:
            del self.bench.alive[key]
        self.bench.there.remove(host)
        self.bench.tell(HostLost(host))
        self.bench.turn()

    @rule()
    def finish(self) -> None:
        self.bench.finish()

    def teardown(self) -> None:
        super().teardown()
        for host in list(self.bench.there):
            if host not in self.leaving:
                self.bench.tell(HostLeaves(host))
        for _ in range(20):
            self.bench.sleep(40)  # sequences that nobody goes on with end
            self.bench.finish()
        assert not self.bench.there
        assert not self.bench.alive


@pytest.mark.timeout(300)
def test_whatever_hosts_do_no_request_is_lost_or_answered_twice():
    HostsMachine.make_bench = staticmethod(HostedBench)
    run_random_events(HostsMachine, usual=200)
