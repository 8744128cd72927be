"""Coroutines in place of ``execute``."""

from __future__ import annotations

import threading
from typing import Any, Callable, List

import pytest
from _tensorbus_app.stub.calls import Executing, executing
from _tensorbus_app.stub.event_loop import EventLoop

Load = Callable[..., Any]
DECOUPLED = {"model_transaction_policy": {"decoupled": True}}
WRAPPER = "Failed to process the request(s) for model 'probe_0_0', message: "


def run(loop: EventLoop, coroutine: Any) -> Any:
    """What it returned and raised."""
    ended, outcome = threading.Event(), []  # type: ignore[var-annotated]

    def on_end(*what: Any) -> None:
        outcome.extend(what)
        ended.set()

    loop.run(coroutine, Executing(7, True), on_end)
    assert ended.wait(10)
    return outcome


async def give(value: Any) -> Any:
    if isinstance(value, BaseException):
        raise value
    return value


def test_what_a_coroutine_returns_or_raises_is_told() -> None:
    loop = EventLoop()
    assert run(loop, give(3)) == [3, None]
    for error in (ValueError("x"), SystemExit(3), KeyboardInterrupt()):
        assert run(loop, give(error)) == [None, error]
    assert loop.result_of(give(4)) == 4
    loop.stop()


def test_the_batch_is_known_in_a_coroutine_and_in_what_it_starts() -> None:
    import asyncio

    async def look() -> Any:
        async def inner() -> Any:
            return executing.get().batch

        return executing.get().batch, await asyncio.create_task(inner())

    loop = EventLoop()
    assert run(loop, look()) == [(7, 7), None]
    assert executing.get().batch == 0
    loop.stop()


def test_a_coroutine_that_stops_the_loop_stops_it_for_nobody() -> None:
    import asyncio

    async def stop() -> None:
        asyncio.get_running_loop().stop()

    loop = EventLoop()
    assert run(loop, stop()) == [None, None]
    assert run(loop, give(3)) == [3, None]
    loop.stop()


def test_one_that_was_never_used_has_nothing_to_stop() -> None:
    before = threading.active_count()
    EventLoop().stop()
    assert threading.active_count() == before


@pytest.mark.parametrize("statement", ["raise ValueError('boom')", "sys.exit(3)", "raise KeyboardInterrupt"])
def test_in_default_mode_an_exception_is_the_answer(load: Load, statement: str) -> None:
    loaded = load(
        f"import sys\nclass TritonPythonModel:\n    async def execute(self, requests):\n        {statement}\n"
    )
    kind = {"raise ValueError('boom')": "ValueError: boom", "sys.exit(3)": "SystemExit: 3"}.get(
        statement, "KeyboardInterrupt: <EMPTY MESSAGE>"
    )
    file = loaded.model.model_file
    assert loaded.infer({}).error == (1, f"{WRAPPER}{kind}\n\nAt:\n  {file}(5): execute\n")


def test_in_default_mode_it_is_awaited(load: Load) -> None:
    loaded = load("""
    import asyncio
    class TritonPythonModel:
        async def execute(self, requests):
            await asyncio.gather(*[asyncio.sleep(0) for _ in range(3)])
            return [pb_utils.InferenceResponse([]) for _ in requests]
    """)
    executed = loaded.execute(loaded.request({}), loaded.request({}))
    assert [response.error for response in executed.responses] == [None, None]


def test_in_decoupled_mode_execute_has_returned_before_it_ends(load: Load) -> None:
    loaded = load(
        """
        import asyncio
        class TritonPythonModel:
            async def execute(self, requests):
                self.go_on = asyncio.Event()
                self.loop = asyncio.get_running_loop()
                await self.go_on.wait()
                raise ValueError("boom")
        """,
        **DECOUPLED,
    )
    request = loaded.request({})
    assert loaded.execute(request).responses == []
    sent: List[Any] = []
    told = threading.Event()
    loaded.port.send = lambda message, frames=(): (sent.extend(message.responses), told.set())
    assert loaded.event_loop.result_of(give(None)) is None  # the coroutine has begun
    instance = loaded.model.instance
    instance.loop.call_soon_threadsafe(instance.go_on.set)
    assert told.wait(10)
    assert [(response.request, response.final) for response in sent] == [(request.id, True)]
    assert sent[0].error[1].startswith(WRAPPER + "ValueError: boom")
    loaded.event_loop.stop()
