from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.gateway.fake_bus import FakeBus, add_models
from tests.gateway.grpc_stand import Serve, serve_grpc


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[FakeBus]:
    bus = FakeBus(str(tmp_path))
    add_models(bus)
    yield bus
    bus.close()


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    return partial(serve_grpc, str(tmp_path))
