"""Random requests, copies, cancels, deaths and reloads of cached models and of ensembles of them.

Everybody is answered once; who is answered from the cache gets what the same load has answered to the same request, and
its bytes stay until they were read; in the end nothing is left.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from broker.events import ClientGone, OutputsRead
from broker.response_cache import OVERHEAD
from protocol.messages import Executed, Handle, Response, TensorRef
from shm.segment import HEADER_NBYTES
from tests.broker.caching_bench import CHAIN, CachingBench, source
from tests.random_events import run_random_events

ENSEMBLES = {"e": CHAIN, "one": [("m", {"X": "X"}, {"X": "Y"})], "nested": [("one", {"X": "X"}, {"Y": "Y"})]}
MODELS = st.sampled_from(["m", "n", *ENSEMBLES])


class RecordingBench(CachingBench):
    """``written`` says whose answer lies where in the cache."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        self.label: Callable[[int], tuple] = lambda request: ()
        self.written: dict[int, tuple] = {}

    def keep(self, position: int = 0, error: str = "") -> None:
        action = self.keeps[position]
        self.written[action.start] = self.label(action.request)
        super().keep(position, error)


class CachingMachine(RuleBasedStateMachine):
    @initialize(entries=st.integers(0, 6), cached=st.sets(MODELS), instances=st.integers(1, 2))
    def begin(self, entries: int, cached: set[str], instances: int) -> None:
        self.cached, self.instances = cached, instances
        self.leases = count(1)
        self.bench = bench = RecordingBench(size=entries * (OVERHEAD + 64))
        self.requests: dict[int, str] = {}  # the content of each
        self.versions: dict[int, object] = {}
        bench.label = lambda request: self.key_of(request) if request in self.requests else ()
        self.unread: set[int] = set()
        self.seen: set[int] = set()
        self.fingerprint = 0
        for name in "mn":
            bench.serve(self.source(name), model=name)
        for name in ("e", "nested"):
            bench.ask_load(name)
            self.answer_polls()

    def source(self, name: str, fingerprint: str = "0"):
        return source(name, ENSEMBLES.get(name, []), name in self.cached, fingerprint, self.instances)

    def answer_polls(self) -> None:
        while self.bench.polls:
            self.bench.found(self.source(self.bench.polls[0].model))

    def key_of(self, request: int) -> tuple:
        return self.versions[request], self.requests[request]

    # --- what happens

    @rule(model=MODELS, content=st.sampled_from("ab"), turn=st.booleans())
    def ask(self, model: str, content: str, turn: bool) -> None:
        try:
            version = self.bench.core.registry.find(model, -1)
        except Exception:
            version = None
        request = self.bench.ask(content, model, turn=False)
        self.requests[request], self.versions[request] = content, version
        if turn:
            self.bench.turn()

    @rule(data=st.data(), readable=st.integers(0, 9))
    def digest(self, data, readable: int) -> None:
        if self.bench.lookups:
            self.bench.digest(data.draw(st.integers(0, len(self.bench.lookups) - 1)), readable > 0)
            self.bench.turn()
            self.look()

    @rule(data=st.data(), fails=st.integers(0, 5))
    def keep(self, data, fails: int) -> None:
        if self.bench.keeps:
            position = data.draw(st.integers(0, len(self.bench.keeps) - 1))
            self.bench.keep(position, "" if fails else "no shared memory")
            self.bench.turn()
            self.look()

    @rule(model=MODELS, content=st.sampled_from("ab"), read=st.booleans())
    def exchange(self, model: str, content: str, read: bool) -> None:
        """A request that nothing comes between, and everything that waits goes on, too."""
        self.ask(model, content, True)
        for _ in range(4):
            self.bench.settle()
            for key in [key for key in self.bench.alive if self.bench.held(key)]:
                self.execute(key, 9, 16, None)
        self.bench.settle()
        self.look()
        while read and self.unread:
            self.bench.tell(OutputsRead("cache", self.unread.pop()))

    @rule(data=st.data(), count=st.integers(1, 3), fails=st.integers(0, 4), nbytes=st.sampled_from([16, 64, 200]))
    def answer(self, data, count: int, fails: int, nbytes: int) -> None:
        holding = [key for key in self.bench.alive if self.bench.held(key)]
        if holding:
            key = data.draw(st.sampled_from(holding))
            self.execute(key, count, nbytes, None if fails else (1, "no"))
            self.look()

    def execute(self, key: str, count: int, nbytes: int, error: tuple[int, str] | None) -> None:
        outputs = [] if error else [TensorRef("X", "FP32", (4,), Handle(key, 128, nbytes))]
        for _ in range(min(count, len(self.bench.held(key)))):
            batch = self.bench.take_batch(key)
            responses = [Response(one.id, outputs, next(self.leases), error) for one in batch.requests]
            self.bench.results(key, executed=[Executed(batch.id, 1, 2, 3, False, responses)])

    @rule(data=st.data())
    def cancel(self, data) -> None:
        if self.requests:
            self.bench.tell(ClientGone(data.draw(st.sampled_from(sorted(self.requests)))))
            self.look()

    @rule(data=st.data(), waits=st.booleans(), model=MODELS)
    def call(self, data, waits: bool, model: str) -> None:
        holding = [key for key in self.bench.alive if self.bench.held(key)]
        if holding:
            key = data.draw(st.sampled_from(holding))
            self.bench.last_id += 1
            self.bench.call(key, model, self.bench.last_id, self.bench.inside(key), waits)

    @rule(data=st.data())
    def die(self, data) -> None:
        if self.bench.alive:
            self.bench.die(data.draw(st.sampled_from(sorted(self.bench.alive))))
            self.look()

    @rule(name=st.sampled_from("mn"))
    def reload(self, name: str) -> None:
        self.fingerprint += 1
        self.bench.ask_load(name)
        while self.bench.polls:
            model = self.bench.polls[0].model
            self.bench.found(self.source(model, str(self.fingerprint) if model == name else "0"))
        self.bench.bring_up()
        self.bench.turn()
        self.look()

    @rule(seconds=st.sampled_from([0.01, 0.2, 1.5]))
    def wait(self, seconds: float) -> None:
        self.bench.sleep(seconds)
        self.bench.bring_up()
        self.bench.finish()
        self.look()

    @rule(data=st.data())
    def read(self, data) -> None:
        if self.unread:
            lease = data.draw(st.sampled_from(sorted(self.unread)))
            self.unread.remove(lease)
            self.bench.tell(OutputsRead("cache", lease))

    # --- what must hold

    def look(self) -> None:
        """At answers that have come since the last time."""
        for request, sink in self.bench.sinks.items():
            assert len([one for one in sink.responses if one.final]) <= 1
            if request in self.seen or not sink.responses:
                continue
            self.seen.add(request)
            for output in sink.responses[0].outputs:
                if output.place.segment == "cache":
                    lease = sink.responses[0].lease
                    if self.versions[request].plan is None:
                        self.unread.add(lease)
                        written = self.bench.written[output.place.offset - HEADER_NBYTES]
                        assert not written or written == self.key_of(request), (written, self.key_of(request))

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        bench = self.bench
        for _ in range(200):
            if not (bench.lookups or bench.keeps or bench.core.in_flight()):
                break
            while bench.lookups:
                bench.digest()
            while bench.keeps:
                bench.keep()
            bench.turn()
            for key in [key for key in bench.alive if bench.held(key)]:
                bench.answer(key)
            bench.sleep(1.5)
            bench.bring_up()
            bench.finish()
        self.look()
        assert not bench.core.in_flight()
        for request in self.requests:
            assert bench.response(request) is not None, request


def test_whatever_happens_everybody_is_answered_and_what_is_kept_is_what_was_answered():
    run_random_events(CachingMachine, usual=60)
