from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import uvloop

from tests.gateway.fake_bus import PLAIN, REMOTE, FakeBus, add_models
from tests.gateway.grpc_stand import Serve, serve_grpc
from tests.gateway.http_stand import Run, Test, serve_http


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[FakeBus]:
    bus = FakeBus(str(tmp_path))
    add_models(bus)
    yield bus
    bus.close()


@pytest.fixture(params=[PLAIN, REMOTE])
def serve(request: pytest.FixtureRequest, tmp_path: Path) -> Serve:
    return partial(serve_grpc, str(tmp_path), way=request.param)


@pytest.fixture(params=["uvloop", "asyncio", REMOTE])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    factory = asyncio.new_event_loop if request.param == "asyncio" else uvloop.new_event_loop
    way = REMOTE if request.param == REMOTE else PLAIN

    def runner(test: Test) -> None:
        with asyncio.Runner(loop_factory=factory) as loop:
            loop.run(serve_http(str(tmp_path), test, way))

    return runner
