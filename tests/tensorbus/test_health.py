import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from tensorbus import health as module
from tensorbus.health import health


async def asked(call: Callable[[], bool]) -> bool:
    return await asyncio.to_thread(call)


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.2)


@pytest.mark.parametrize("loop", [uvloop.run, asyncio.run])
def test_a_service_is_asked_on_its_loop(loop: Callable[[Any], None]) -> None:
    async def run() -> None:
        here = asyncio.get_running_loop()

        def later(done: Callable[[bool], None]) -> None:
            assert asyncio.get_running_loop() is here
            here.call_later(0.01, done, True)

        for ready, expected in ((lambda done: done(False), False), (later, True)):
            of_service = health(here, ready)
            assert await asked(of_service.live)
            assert await asked(of_service.ready) is expected

    loop(run())


def test_a_service_that_does_not_say_is_not_ready_but_live() -> None:
    async def run() -> None:
        owed: list[Callable[[bool], None]] = []
        of_service = health(asyncio.get_running_loop(), owed.append)
        assert not await asked(of_service.ready)
        assert await asked(of_service.live)
        owed[0](True)  # too late

    uvloop.run(run())


def test_a_loop_that_is_stuck_or_closed_is_not_live() -> None:
    loop = uvloop.new_event_loop()
    of_service = health(loop, lambda done: done(True))
    assert not of_service.live()  # it does not run
    loop.close()
    assert not of_service.live() and not of_service.ready()
