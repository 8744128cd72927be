"""The response cache of a broker of its own: the same answers, whoever shares memory with whom."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.system import several_hosts
from tests.system.conftest import MiB, Repository, eventually
from tests.system.scaled_stack import ScaledStack, Service, ready, scaled_stack
from tests.system.test_response_cache import CACHED, COUNTING
from tests.system.test_scaled_stack import with_its_own_shm

pytestmark = [
    pytest.mark.skipif(bool(several_hosts.why_not()), reason=several_hosts.why_not()),
    pytest.mark.usefixtures("all_in_shared_memory"),
]
CACHE = f"--cache-config=local,size={64 * MiB}"


@pytest.fixture
def stack(repository: Repository, tmp_path: Path) -> Iterator[ScaledStack]:
    repository.add("counting", COUNTING, config=CACHED)
    with scaled_stack(repository, tmp_path) as stack:
        yield stack


def check(gateways: list[Service], offset: int = 0) -> None:
    """What one of them has been told all are; the model counts what it executes."""
    for number, gateway in enumerate(gateways, 1):
        for size in (1, 1 << 20):  # digested and copied at once, and in a thread
            array = np.full(size, number, np.float32)
            first = gateway.post_binary("counting", array).array
            assert np.array_equal(first[:-1], array) and first[-1] == (number - 1) * 2 + (size > 1) + 1 + offset
            for other in gateways:
                assert np.array_equal(other.post_binary("counting", array).array, first)


def test_who_shares_memory_with_the_broker_and_who_does_not_are_answered_alike(stack):
    broker = stack.broker(CACHE)
    stack.stub_host()
    gateways = [stack.gateway(), stack.gateway(place=with_its_own_shm)]
    for gateway in gateways:
        ready(gateway, "counting")
    check(gateways)
    found = {name: one["count"] for name, one in gateways[0].statistics("counting").items()}
    assert (found["success"], found["cache_hit"], found["cache_miss"]) == (12, 8, 4)
    exposition = broker.exposition()
    assert "nv_cache_num_hits 8" in exposition and "nv_cache_num_entries 4" in exposition
    assert broker.terminate() == 0
    stack.broker(CACHE)
    ready(gateways[1], "counting")
    assert gateways[1].post("counting", [1]).data == [1, 5]  # it has forgotten


def test_a_broker_that_shares_memory_with_nobody_keeps_what_it_is_sent(stack):
    broker = stack.broker(CACHE, place=with_its_own_shm)
    stack.stub_host()
    gateways = [ready(stack.gateway(), "counting"), ready(stack.gateway(place=with_its_own_shm), "counting")]
    check(gateways)
    assert "nv_cache_num_hits 8" in broker.exposition()
    # The outputs that went to the gateway that shares the stub's memory were fetched for the cache.
    eventually(lambda: "tensorbus_broker_fetches_total 2" in broker.exposition())
