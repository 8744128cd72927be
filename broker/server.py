"""The broker's shell: the bus, timers and the status words of stubs. It contains no rule.

Receive, event, core, actions, send. What the gateway brings during one turn of the event loop leaves at its end, one
message to each stub; so does what one stub has said together. Work leaves before the answers to what was done: 64 of
them take two milliseconds to write, in which a stub would have nothing to do.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

import structlog

from broker.cache_memory import CacheMemory
from broker.core import Core
from broker.events import (
    Abort,
    Action,
    Answer,
    AskedReady,
    ClientGone,
    DeadlinePassed,
    Discard,
    Dismiss,
    Event,
    InputsReleased,
    Keep,
    Kill,
    LookUp,
    ModelSaid,
    OutputsRead,
    Override,
    Pause,
    Poll,
    Polled,
    Prepare,
    Prepared,
    Say,
    Send,
    Spawn,
    StubDied,
    StubSaid,
    Submitted,
    TellDone,
    TellReady,
    WatchStatus,
)
from broker.execution_env import ExecutionEnv
from broker.model import VersionSource
from broker.queue import Frames, ReplySink
from broker.router import DoesNotRead, Unreachable
from broker.settings import BrokerSettings
from broker.stubs import Stubs
from broker.turn import Soon
from protocol.codec import decode_from_stub
from protocol.errors import InternalError, ProtocolError, ServingError
from protocol.interpreters import Interpreter
from protocol.messages import Execute, Request
from protocol.signature import IndexEntry

log = structlog.get_logger()


class Repositories(Protocol):
    """Where models come from."""

    async def names(self) -> dict[str, str]:
        """What there is, with the reason of what can be no model. Raises ServingError."""

    async def poll(self, model: str, override: Override | None, quiet: bool = False) -> list[VersionSource]:
        """The versions to load. Raises ServingError. ``quiet``: what is wrong has been logged already."""

    async def discard(self, directory: str) -> None:
        """Remove a directory that was made for a load."""


class BrokerServer:
    """Owns the socket. ``spawn``, ``kill(key)``, ``abort(key)`` are for stubs; ``prepare`` makes an environment ready
    and may take long; ``said`` logs a model's own line."""

    def __init__(
        self,
        core: Core,
        settings: BrokerSettings,
        stubs: Stubs,
        spawn: Callable[[Spawn], None],
        kill: Callable[[str], None],
        abort: Callable[[str], None],
        prepare: Callable[[ExecutionEnv], Awaitable[Interpreter]],
        repositories: Repositories,
        said: Callable[[ModelSaid], None],
        cache: CacheMemory | None = None,
        dismiss: Callable[[str], None] = lambda host: None,
        soon: Soon | None = None,
    ) -> None:
        """``dismiss(host)`` is for stub hosts that leave; ``soon`` is the loop's call_soon, or of a Turn."""
        self.core = core
        self._settings = settings
        self._stubs = stubs
        self._inbox: list[Event] = []
        self._news: list[Action] = []  # what this turn's events have led to, in order; goes out after the work
        self._outbox: deque[Action] = deque()  # of it, what is left for later turns by a Pause
        self._prepare = prepare
        self._repositories = repositories
        self._cache = cache
        self._soon = soon
        self._is_due = False  # the end of this turn
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._do: dict[type, Callable[[Any], None]] = {
            Answer: self._answer,
            LookUp: lambda action: self._look_up(action, self.post),
            Keep: self._keep,
            Send: self._send,
            InputsReleased: self._inputs_released,
            Prepare: lambda action: self._begin(self._prepared(action)),
            Poll: lambda action: self._begin(self._polled(action)),
            Discard: lambda action: self._begin(repositories.discard(action.directory)),
            TellDone: lambda action: action.asker(action.error),
            Spawn: spawn,
            Kill: lambda action: kill(action.key),
            Abort: lambda action: abort(action.key),
            WatchStatus: stubs.watch,
            Dismiss: lambda action: dismiss(action.host),
            TellReady: lambda action: action.done(action.ready),
            Say: self._say,
            ModelSaid: said,
        }

    def start(self) -> None:
        """Binds; call it on the running loop. Raises OSError."""
        self._loop = asyncio.get_running_loop()
        if self._soon is None:
            self._soon = self._loop.call_soon
        self._stubs.start(self._heard, self._end_turn)

    def close(self) -> None:
        """After the last stub has gone."""
        if self._timer is not None:
            self._timer.cancel()
        self._stubs.close()
        if self._cache is not None:
            self._cache.close()

    async def stop_preparing(self) -> None:
        """What is still being prepared will not be needed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def ready(self, done: Callable[[bool], None]) -> None:
        """Whether a load balancer should send work here."""
        self.post(AskedReady(None, done))

    def model_ready(self, model: str, version: int, done: Callable[[bool], None]) -> None:
        """Raises NotFound for what was never known."""
        found = self.core.registry.servable(model, version)
        if found is None:
            done(False)
        else:
            self.post(AskedReady(found, done))

    def index(self, ready: bool, done: Callable[[list[IndexEntry]], None]) -> None:
        """Of what the repositories hold at this moment."""
        if not ready:
            self._begin(self._indexed(done))
        else:
            done(self.core.registry.index(ready))

    async def _indexed(self, done: Callable[[list[IndexEntry]], None]) -> None:
        registry = self.core.registry
        try:
            registry.set_names(await self._repositories.names())
        except ServingError as error:
            log.error("a repository could not be read", cause=str(error))
        done(registry.index(ready=False))

    # --- what comes in --------------------------------------------------------------------------------------------

    def submit(self, request: Request, frames: Frames, sink: ReplySink) -> None:
        self._inbox.append(Submitted(request, frames, sink, time.monotonic_ns()))
        if not self._is_due:
            self._turn_soon()

    def cancel(self, request: int) -> None:
        self.post(ClientGone(request))

    def release(self, origin: str, lease: int) -> None:
        actions = self.core.handle(OutputsRead(origin, lease), time.monotonic_ns())
        if actions:
            self._carry_out(actions)
        if self._timer is None:
            self._watch()

    def stub_died(self, key: str, status: int) -> None:
        """Its last words come before its death."""
        self.post(StubDied(key, status, self._stubs.hear_out(key)))

    def post(self, event: Event) -> None:
        """Have the core told at the end of this turn of the loop."""
        self._inbox.append(event)
        if not self._is_due:
            self._turn_soon()

    def tell(self, event: Event) -> None:
        """Have the core told now, between what stubs have said before and what they say next."""
        self._news += self.core.handle(event, time.monotonic_ns())
        if not self._is_due:
            self._turn_soon()

    def _turn_soon(self) -> None:
        self._is_due = True
        assert self._soon is not None
        self._soon(self._turn)

    def _turn(self) -> None:
        if self._is_due:
            self.catch_up()

    def catch_up(self) -> None:
        """Ends the turn now, for what has come so far."""
        self._take_in()
        self._end_turn()

    def _take_in(self) -> None:
        self._is_due = False
        now = time.monotonic_ns()
        inbox, self._inbox = self._inbox, []
        for event in inbox:
            self._news += self.core.handle(event, now)

    def _look_up_now(self) -> None:
        """What came in this turn is looked up in it, too: a request that is found needs no other."""
        news, self._news = self._news, []
        for action in news:
            if type(action) is LookUp:
                self._look_up(action, self._tell_now)
            else:
                self._news.append(action)

    def _tell_now(self, event: Event) -> None:
        self._news += self.core.handle(event, time.monotonic_ns())

    def _end_turn(self) -> None:
        self._act()
        self._watch()

    def _act(self) -> None:
        if self._cache is not None:
            self._look_up_now()
        actions, news, self._news = self._news, [], []
        actions += self.core.dispatch(time.monotonic_ns())
        for action in actions:
            # Outputs for who does not share memory are copied at once: work that follows brings the end of their lease.
            if type(action) is Send and (type(action.message) is Execute or not action.shared):
                self._send(action)
            else:
                news.append(action)
        goes_on = bool(self._outbox)
        self._outbox += news
        if not goes_on:
            self._tell()
        self.core.count()

    def _tell(self) -> None:
        """What is in the outbox, up to a Pause."""
        outbox = self._outbox
        try:
            while outbox:
                action = outbox.popleft()
                if type(action) is Pause:
                    break
                self._do[type(action)](action)
        finally:
            if outbox:
                self._loop.call_soon(self._tell)

    def _heard(self, key: str, header: memoryview, frames: list[memoryview]) -> None:
        try:
            message = decode_from_stub(header)
        except ProtocolError as fault:
            log.error("a stub broke the protocol", stub=key, cause=str(fault))
            self._news.append(Kill(key))
            return
        self._news += self.core.handle(StubSaid(key, message, frames), time.monotonic_ns())

    # --- time -----------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """A timer runs after every turn, for at most ``release_delay_ns``, and on while any deadline is ahead. Only
        requests and batches that wait set deadlines sooner than that, so a turn asks for theirs alone."""
        at = self.core.next_request_deadline()
        if self._timer is None or (at is not None and at < self._timer_at):
            self._set_timer(at)

    def _set_timer(self, at: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now, delay_ns = time.monotonic_ns(), self._settings.release_delay_ns
        if at is not None:
            delay_ns = min(max(0, at - now), delay_ns)
        self._timer_at = now + delay_ns
        self._timer = self._loop.call_later(delay_ns / 1e9, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._news += self.core.handle(DeadlinePassed(), time.monotonic_ns())
        self._take_in()
        self._act()
        at = self.core.next_deadline()
        if at is not None:
            self._set_timer(at)

    # --- what goes out --------------------------------------------------------------------------------------------

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            self._do[type(action)](action)

    @staticmethod
    def _answer(action: Answer) -> None:
        pending, response, origin, frames = action
        assert pending.sink is not None  # the answers to calls are sent to their stubs
        try:
            pending.sink.on_response(response, origin, frames)
        except Exception as fault:  # of one front's one request: those behind it must have their answers
            log.error("an answer was lost", request_id=pending.request.request_id, exc_info=fault)

    @staticmethod
    def _inputs_released(action: InputsReleased) -> None:
        assert action.pending.sink is not None
        action.pending.sink.on_inputs_released()

    def _send(self, action: Send) -> None:
        try:
            self._stubs.send(action)
        except DoesNotRead:
            log.error("a stub does not read its messages", stub=action.key)
            self._carry_out([Kill(action.key)])
        except Unreachable:
            pass  # it has died; what was meant for it is in its Instance and goes back with StubDied

    def _look_up(self, action: LookUp, tell: Callable[[Event], None]) -> None:
        assert self._cache is not None
        self._cache.look_up(action, tell, self._post_from_thread)

    def _keep(self, action: Keep) -> None:
        assert self._cache is not None
        self._cache.keep(action, self.post, self._post_from_thread)

    def _post_from_thread(self, event: Event) -> None:
        self._loop.call_soon_threadsafe(self.post, event)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _prepared(self, action: Prepare) -> None:
        version, env = action
        try:
            event = Prepared(version, await self._prepare(env))
        except ServingError as error:
            event = Prepared(version, None, error)
        except Exception as fault:
            log.error("an environment could not be prepared", model=version.name, exc_info=fault)
            event = Prepared(version, None, InternalError(f"{env.asked_by}: internal error"))
        self.post(event)

    async def _polled(self, action: Poll) -> None:
        number, model, override, quiet = action
        try:
            event = Polled(number, model, await self._repositories.poll(model, override, quiet))
        except ServingError as error:
            event = Polled(number, model, [], error)
        except Exception as fault:
            log.error("a model's directory could not be read", model=model, exc_info=fault)
            event = Polled(number, model, [], InternalError(f"failed to load '{model}', internal error"))
        self.post(event)

    @staticmethod
    def _say(action: Say) -> None:
        getattr(log, action.level)(action.event, **action.fields)
