from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import uvloop

from tests.gateway.fake_bus import FakeBus, add_models
from tests.gateway.grpc_stand import Serve, serve_grpc
from tests.gateway.http_stand import Run, Test, serve_http


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[FakeBus]:
    bus = FakeBus(str(tmp_path))
    add_models(bus)
    yield bus
    bus.close()


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    return partial(serve_grpc, str(tmp_path))


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def runner(test: Test) -> None:
        with asyncio.Runner(loop_factory=factory) as loop:
            loop.run(serve_http(str(tmp_path), test))

    return runner
