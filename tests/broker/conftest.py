"""Drives a Core without sockets: plays launcher, stubs and gateway by the book, with a clock of its own."""

from __future__ import annotations

import json

import pytest

from broker.core import Core
from broker.events import (
    Answer,
    DeadlinePassed,
    InputsReleased,
    Kill,
    LoadModels,
    Send,
    Spawn,
    StubDied,
    StubSaid,
    Submitted,
)
from broker.model import VersionSource
from broker.model_config import ModelConfigMessage, from_message
from broker.settings import BrokerSettings
from metrics.recorder import Recorder
from protocol.interpreters import Interpreter
from protocol.messages import (
    CALL,
    CONFIGURED,
    HELLO,
    READY,
    RESULTS,
    VERSION,
    Batch,
    Call,
    Configured,
    Execute,
    Executed,
    Finish,
    Handle,
    Hello,
    Load,
    Ready,
    Request,
    Response,
    Results,
    TensorRef,
)

NONCE = b"n" * 32


class Sink:
    def __init__(self) -> None:
        self.responses: list[Response] = []
        self.inputs_released = 0

    def on_response(self, response, origin, frames) -> None:
        self.responses.append(response)

    def on_inputs_released(self) -> None:
        self.inputs_released += 1


class Bench:
    """A core with everything around it. Stubs are alive from Spawn on and do nothing until told."""

    def __init__(self, **settings: object) -> None:
        base = {"bus": "ipc://x", "shm_directory": "/x", "auto_complete": False}
        self.settings = BrokerSettings(**{**base, **settings})
        self.recorder = Recorder()
        self.core = Core(self.settings, self.recorder, Handle("s", 128, 32), NONCE, 0)
        self.now = 1_000_000_000
        self.alive: dict[str, str] = {}  # key to title
        self.interpreters: dict[str, Interpreter | None] = {}  # of every stub so far
        self.killed: list[str] = []
        self.inbox: dict[str, list] = {}  # what each stub has been sent and not yet handled
        self.said: list = []
        self.sinks: dict[int, Sink] = {}
        self.last_id = 0

    # -- around the core

    def tell(self, event: object) -> None:
        self._carry_out(self.core.handle(event, self.now))
        self.core.check()

    def turn(self) -> None:
        self._carry_out(self.core.dispatch(self.now))
        self.core.count()
        self.core.check()

    def _carry_out(self, actions: list) -> None:
        for action in actions:
            if isinstance(action, Spawn):
                assert action.key not in self.alive
                self.alive[action.key] = action.title
                self.interpreters[action.key] = action.interpreter
                self.inbox[action.key] = []
            elif isinstance(action, Kill):
                self.killed.append(action.key)
            elif isinstance(action, Send):
                if action.key in self.alive:
                    self.inbox[action.key].append(action.message)
            elif isinstance(action, Answer):
                action.pending.sink.on_response(action.response, action.origin, action.frames)
            elif isinstance(action, InputsReleased):
                action.pending.sink.on_inputs_released()
            else:
                self.said.append(action)

    def sleep(self, seconds: float) -> None:
        self.now += int(seconds * 1e9)
        self.tell(DeadlinePassed())
        self.turn()

    # -- a repository

    def load(
        self,
        name: str = "m",
        instances: int = 1,
        versions: tuple[int, ...] = (1,),
        passive: bool = False,
        backend: str = "python",
        decoupled: bool = False,
        **fields: object,
    ) -> None:
        message = ModelConfigMessage(name=name, backend=backend, **fields)
        if decoupled:
            message.model_transaction_policy.decoupled = True
        message.instance_group.add(count=instances, name=name, passive=passive)
        for io in (message.input.add(), message.output.add()):
            io.name, io.data_type, io.dims[:] = "X", 11, [4]
        config = from_message(message)
        self.tell(LoadModels([VersionSource(name, version, f"/repo/{name}", config) for version in versions]))

    def bring_up(self) -> None:
        """Every living stub that has not loaded yet does so."""
        for key in list(self.alive):
            self.hello(key)
            self.loaded(key)

    def hello(self, key: str) -> None:
        self.tell(StubSaid(key, Hello(HELLO, VERSION, 1), ()))

    def loaded(self, key: str) -> None:
        load = self.inbox[key].pop(0)
        assert isinstance(load, Load)
        if load.mode == "auto_complete":
            message = Configured(CONFIGURED, load.args["model_config"])
            json.loads(load.args["model_config"])
        else:
            message = Ready(READY, NONCE, "segment")
        self.tell(StubSaid(key, message, ()))
        self.turn()

    # -- clients

    def submit(self, model: str = "m", version: int = -1, rows: int = 4, **fields: object) -> int:
        self.last_id += 1
        sink = self.sinks[self.last_id] = Sink()
        tensor = TensorRef("X", "FP32", (rows,), Handle("g", 128, 16))
        request = Request(self.last_id, model, version, [tensor], f"client-{self.last_id}", **fields)
        self.tell(Submitted(request, (), sink, self.now))
        return self.last_id

    def response(self, request: int) -> Response | None:
        """The one final response to a request, if it has come."""
        finals = [response for response in self.sinks[request].responses if response.final]
        assert len(finals) <= 1, "answered twice"
        return finals[0] if finals else None

    def error(self, request: int) -> str:
        response = self.response(request)
        assert response is not None and response.error is not None
        return response.error[1]

    # -- stubs

    def held(self, key: str) -> list[int]:
        """Requests that a stub has been sent and has not answered."""
        return [
            request.id
            for message in self.inbox[key]
            if isinstance(message, Execute)
            for batch in message.batches
            for request in batch.requests
        ]

    def answer(self, key: str, count: int = 1, execute_ns: int = 50_000, lie: bool = False, **fields: object) -> None:
        """A stub executes its next ``count`` batches and says so in one message; a liar adds one it was not sent."""
        batches = [batch for message in self.inbox[key] if isinstance(message, Execute) for batch in message.batches]
        done, left = batches[:count], batches[count:]
        others = [message for message in self.inbox[key] if not isinstance(message, Execute)]
        self.inbox[key] = ([Execute("E", left, [])] if left else []) + others
        executed = [
            Executed(batch.id, 0, execute_ns, 0, False, [Response(r.id, [], **fields) for r in batch.requests])
            for batch in done
        ]
        if lie:
            executed.append(Executed(1 << 40, 0, 0, 0, False, []))
        self.tell(StubSaid(key, Results(RESULTS, executed, []), ()))
        self.turn()

    def executed(self, key: str, *responses: Response, **fields: object) -> None:
        """A stub says that its next batch was executed, with these responses and no others."""
        batch = self.take_batch(key)
        self.results(key, executed=[Executed(batch.id, 1, 2, 3, False, list(responses), **fields)])

    def take_batch(self, key: str) -> Batch:
        message = next(one for one in self.inbox[key] if isinstance(one, Execute) and one.batches)
        return message.batches.pop(0)

    def results(self, key: str, executed: list[Executed] = [], **fields: object) -> None:  # noqa: B006
        self.tell(StubSaid(key, Results(RESULTS, executed, fields.pop("released", []), **fields), ()))
        self.turn()

    def call(
        self, key: str, model: str, number: int = 1, batch: int = 0, waits: bool = True, decoupled: bool = False
    ) -> None:
        """A stub's model calls another."""
        tensor = TensorRef("X", "FP32", (4,), Handle("stub", 128, 16))
        request = Request(0, model, -1, [tensor])
        self.tell(StubSaid(key, Call(CALL, number, request, batch, waits, decoupled), ()))
        self.turn()

    def sent(self, key: str, kind: type) -> list:
        """The messages of that kind that a stub has been sent."""
        return [message for message in self.inbox[key] if isinstance(message, kind)]

    def die(self, key: str, status: int = -9, inside: int | None = 0) -> None:
        del self.alive[key]
        self.tell(StubDied(key, status, inside))
        self.turn()

    def batches(self, key: str) -> list[Batch]:
        """What a stub holds."""
        return [batch for message in self.inbox[key] if isinstance(message, Execute) for batch in message.batches]

    def inside(self, key: str, position: int = 0) -> int:
        """The Batch.id at a position of what a stub holds."""
        return self.batches(key)[position].id

    def only(self) -> str:
        (key,) = self.alive
        return key

    def finish(self) -> None:
        """Stubs that were told to finish, or killed, go."""
        for key in list(self.alive):
            if key in self.killed or any(isinstance(message, Finish) for message in self.inbox[key]):
                self.die(key, 0)


@pytest.fixture
def make_bench():
    return Bench


@pytest.fixture
def bench():
    """One model "m" with one instance, READY."""
    bench = Bench()
    bench.load()
    bench.bring_up()
    return bench
