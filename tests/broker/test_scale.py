"""What a request costs the core does not grow with what else there is: a loop over all that waits, or over all models,
would cost a hundred times as much here."""

from __future__ import annotations

import pytest

from benchmarks.broker_scale import AXES, Axis, measure

REQUESTS = 400
SLACK = 3.0  # a busy machine


@pytest.mark.parametrize("axis", AXES, ids=lambda axis: axis.job.__name__)
def test_the_cost_of_a_request_stays(axis: Axis) -> None:
    less = axis._replace(sizes=(axis.sizes[0], min(axis.sizes[-1], 1000)))
    small, large = measure(less, REQUESTS, rounds=2)
    assert large < SLACK * small
