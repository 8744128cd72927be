"""A core with a response cache; the shell's part of it is done when the test says so."""

from __future__ import annotations

from broker.core import Core
from broker.events import Keep, Kept, LookedUp, LookUp, StartServing, Submitted
from broker.model import VersionSource
from broker.response_cache import ResponseCache
from metrics.cache_record import CacheRecord
from protocol.messages import Execute, Executed, Handle, Request, Response, TensorRef
from tests.broker import model_sources
from tests.broker.conftest import NONCE, Sink
from tests.broker.test_control import ControlBench

CHAIN = [("m", {"X": "X"}, {"X": "t"}), ("n", {"X": "t"}, {"X": "Y"})]


def source(
    name: str, steps: list = (), cached: bool = True, fingerprint: str = "a", instances: int = 1, ordered: bool = False
) -> VersionSource:
    fields = {"max_batch_size": 1, "dynamic_batching": {"preserve_ordering": True}} if ordered else {}
    output = "Y" if steps else "X"
    caching = {"enable": cached}
    return model_sources.source(
        name, steps, fingerprint, output=output, instances=instances, response_cache=caching, **fields
    )


class CachingBench(ControlBench):
    def __init__(self, size: int = 1 << 20, **settings: object) -> None:
        self.lookups: list[LookUp] = []
        self.keeps: list[Keep] = []
        super().__init__(response_cache=True, **settings)
        self.cache = ResponseCache("cache", CacheRecord(size))
        self.core = Core(self.settings, self.recorder, Handle("s", 128, 32), NONCE, 0, self.cache)
        self.tell(StartServing())

    def _carry_out(self, actions: list) -> None:
        for action in actions:
            if isinstance(action, LookUp):
                self.lookups.append(action)
            elif isinstance(action, Keep):
                self.keeps.append(action)
            else:
                super()._carry_out([action])

    # -- the shell

    def digest(self, position: int = 0, readable: bool = True) -> None:
        """By what the client says that its request is; what models ask of others and steps are told apart by where
        their inputs lie."""
        action = self.lookups.pop(position)
        request = action.pending.request
        content = request.parameters.get("content", request.inputs[0].place)
        digest = f"{content} {action.outputs}".encode() if readable else b""
        self.tell(LookedUp(request.id, digest, 1_000))

    def keep(self, position: int = 0, error: str = "") -> None:
        self.tell(Kept(self.keeps.pop(position).request, 2_000, error))

    def settle(self) -> None:
        """All that the shell is asked for is done, and what follows from it."""
        while self.lookups or self.keeps:
            if self.keeps:
                self.keep()
            else:
                self.digest()
            self.turn()

    # -- clients and models

    def ask(self, content: str, model: str = "m", outputs: list[str] = [], turn: bool = True) -> int:  # noqa: B006
        self.last_id += 1
        sink = self.sinks[self.last_id] = Sink()
        tensor = TensorRef("X", "FP32", (4,), Handle("g", 128, 16))
        request = Request(self.last_id, model, -1, [tensor], f"client-{self.last_id}", outputs, {"content": content})
        self.tell(Submitted(request, (), sink, self.now))
        if turn:
            self.turn()
            self.settle()
        return self.last_id

    def key_of(self, model: str) -> str:
        """Of its one stub that serves."""
        (key,) = [key for key, title in self.alive.items() if title.startswith(f"{model}:") and key not in self.killed]
        return key

    def answered(self, model: str = "m", place: int = 128, **fields: object) -> None:
        """The oldest batch of a model is executed; its output lies there."""
        key = self.key_of(model)
        batch = self.take_batch(key)
        output = TensorRef("X", "FP32", (4,), Handle(f"{model}'s", place, 16))
        outputs = [] if "error" in fields else [output]
        responses = [Response(request.id, outputs, lease=place, **fields) for request in batch.requests]
        self.results(key, executed=[Executed(batch.id, 1, 20, 3, False, responses)])
        self.settle()

    def holds(self, model: str = "m") -> int:
        """Requests that a model has been sent and has not answered."""
        return sum(len(batch.requests) for one in self.sent(self.key_of(model), Execute) for batch in one.batches)

    def statistics(self, model: str = "m") -> tuple[int, int, int, int]:
        (one,) = [one for one in self.recorder if one.model == model]
        one.check()
        return one.success, one.execution_count, one.cache_hit, one.cache_miss
