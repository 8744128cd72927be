"""State machines and properties over random sequences of events: a few examples of each in every test run, as many as
TENSORBUS_EXAMPLES says where it is set."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def examples(usual: int) -> int:
    return int(os.environ.get("TENSORBUS_EXAMPLES", usual))


def run_random_events(machine: type[RuleBasedStateMachine], usual: int, steps: int = 40) -> None:
    """``examples(usual)`` sequences of at most ``steps`` events each; the shortest that breaks a rule is raised."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples(usual),
            stateful_step_count=steps,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
        ),
    )
