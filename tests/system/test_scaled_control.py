"""Models of a scaled stack come and go: by polls, and by other models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.conftest import IDENTITY, Repository, eventually
from tests.system.scaled_stack import ScaledStack, ready, scaled_stack

LOADER = """
def execute(self, requests):
    pb_utils.load_model("other")
    return [respond(request, values(request)) for request in requests]
"""


@pytest.fixture
def stack(repository: Repository, tmp_path: Path) -> Iterator[ScaledStack]:
    with scaled_stack(repository, tmp_path) as stack:
        yield stack


def test_a_poll_tries_again_what_has_failed_on_a_host(repository, stack, flag):
    flag("hindrance").touch()
    repository.add(
        "late", IDENTITY + f"\ndef initialize(self, args):\n    assert not os.path.exists({str(flag('hindrance'))!r})"
    )
    broker = stack.broker("--model-control-mode=poll", "--repository-poll-secs=1")
    stack.stub_host()
    gateway = stack.gateway()
    eventually(lambda: broker.lines("failed to load 'late'"), 20)
    flag("hindrance").unlink()
    ready(gateway, "late")


def test_what_a_model_has_loaded_is_there_as_soon_as_it_says_so(repository, stack):
    repository.add("loader", LOADER)
    repository.add("other")
    stack.broker("--model-control-mode=explicit", "--load-model=loader")
    stack.stub_host()
    gateway = ready(stack.gateway(), "loader")
    for _ in range(5):
        assert gateway.post("loader", [1]).data == [1]
        assert gateway.post("other", [2]).data == [2]
        assert gateway.call("POST", "/v2/repository/models/other/unload", b"{}").status == 200
