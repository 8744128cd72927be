"""Input arrays that a model keeps beyond its execute."""

from __future__ import annotations

import numpy as np
import pytest

from tests.system.conftest import MiB, Repository, Start, eventually

pytestmark = pytest.mark.usefixtures("all_in_shared_memory")

KEEP = """
def execute(self, requests):
    responses = []
    for request in requests:
        kept = getattr(self, "kept", None)
        self.kept = values(request)
        responses.append(respond(request, self.kept if kept is None else kept))
    return responses
"""


def test_an_input_that_a_model_keeps_stays_what_it_was(repository: Repository, start: Start) -> None:
    """A view of shared memory that outlived its request read unmapped memory: SIGSEGV, or another request's data."""
    repository.add("keep", KEEP)
    repository.add("ident")
    server = start()
    stub = server.stub("keep")

    assert server.post("keep", [1.0, 1.0, 1.0]).data == [1.0, 1.0, 1.0]
    for number in range(50):
        array = np.full(1_000_000, number, np.float32)
        assert (server.post_binary("ident", array).array == number).all()
    assert server.post("keep", [2.0, 2.0, 2.0]).data == [1.0, 1.0, 1.0]
    assert server.post("keep", [3.0, 3.0, 3.0]).data == [2.0, 2.0, 2.0]
    assert server.stub("keep") == stub


def test_a_large_input_that_a_model_keeps_is_freed_when_it_lets_go(repository: Repository, start: Start) -> None:
    repository.add("keep", KEEP)
    server = start()
    for number in range(10):
        array = np.full(4 * MiB, number, np.float32)
        assert (server.post_binary("keep", array).array == max(0, number - 1)).all()
    assert server.shm_bytes() < 120 * MiB  # not ten times 16 MiB, twice


def test_an_input_kept_by_a_model_that_dies_is_freed(repository: Repository, start: Start) -> None:
    repository.add("keep", KEEP)
    server = start()
    for deaths in (1, 2, 3):
        server.post_binary("keep", np.ones(MiB, np.float32))
        server.stub("keep").kill()
        eventually(lambda: server.metric("tensorbus_stub_restarts_total", "keep") == deaths)  # noqa: B023
        eventually(server.ready)
    assert server.shm_bytes() < 24 * MiB
    assert server.post("keep", [2.0]).data == [2.0]
