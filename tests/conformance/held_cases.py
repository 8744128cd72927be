"""What schedulers make of requests that wait together (the repository ``held``): which are executed with which."""

from __future__ import annotations

from typing import Any

from tests.conformance.requests import Burst, Case, Http, case, http, infer, tensor
from tests.conformance.scheduling_models import HELD


def held(name: str, *steps: Any) -> Case:
    return case(f"held: {name}", *steps, repository="held")


def rows(model: str, first: int, count: int = 1, width: int = 1, extra: bool = False, **members: Any) -> Http:
    """X counts from ``first``, so that it tells whose row is whose."""
    inputs = [tensor("X", "INT32", [count, width], list(range(first, first + count * width)))]
    if extra:
        inputs.append(tensor("EXTRA", "INT32", [count, 1], [7] * count))
    return infer(model, inputs, **members)


def grouped(name: str, model: str, *requests: Http) -> Case:
    """The answers tell the grouping, the statistics how many executions of which size."""
    assert len(requests) >= HELD
    return held(name, Burst(model, requests), http("GET", f"/v2/models/{model}/stats"))


def of_sizes(model: str, *sizes: int) -> list[Http]:
    return [rows(model, 100 * number, size) for number, size in enumerate(sizes)]


def of_sequences(model: str, *steps: tuple[int, str]) -> list[Http]:
    """Each is (correlation id, flags): "s" starts, "e" ends, "se" does both."""
    return [
        rows(
            model,
            number,
            parameters={"sequence_id": id, "sequence_start": "s" in flags, "sequence_end": "e" in flags},
        )
        for number, (id, flags) in enumerate(steps)
    ]


_PRIORITIES = (0, 3, 1, 2, 9, 1)
BATCHES = [
    grouped("as many as fit", "plain", *of_sizes("plain", 1, 2, 1, 3, 4, 1)),
    grouped("a batch ends where the next does not fit", "small", *of_sizes("small", 2, 2, 1, 1, 3, 1)),
    grouped("a preferred size", "preferred", *of_sizes("preferred", 1, 1, 1, 1, 1, 1)),
    grouped("the smaller of two preferred sizes", "preferred_below", *of_sizes("preferred_below", 1, 1, 1, 1, 1, 1)),
    grouped("a preferred size that is not met", "preferred_two", *of_sizes("preferred_two", 3, 1, 3, 1, 3, 1)),
    grouped("a preferred size, and a delay", "preferred_delayed", *of_sizes("preferred_delayed", 1, 1, 1, 1, 1, 1)),
    grouped("a delay", "delayed", *of_sizes("delayed", 1, 1, 1, 1, 1, 1)),
    grouped("other shapes", "shapes", *(rows("shapes", 10 * i, width=w) for i, w in enumerate((2, 2, 3, 3, 2, 2)))),
    grouped("ragged shapes", "ragged", *(rows("ragged", 10 * i, width=w) for i, w in enumerate((2, 2, 3, 3, 2, 1)))),
    grouped(
        "optional inputs",
        "extras",
        *(rows("extras", i, extra=extra) for i, extra in enumerate((False, False, True, True, False, True))),
    ),
    grouped(
        "priorities", "levels", *(rows("levels", i, parameters={"priority": p}) for i, p in enumerate(_PRIORITIES))
    ),
    grouped("in order", "ordered", *of_sizes("ordered", 1, 1, 1, 1, 1, 1)),
    grouped(
        "a model without batches",
        "unbatched",
        *(infer("unbatched", [tensor("X", "INT32", [1], [number])]) for number in range(HELD)),
    ),
    grouped(
        "one fails, the others do not",
        "failing",
        *(rows("failing", i, parameters={"fails": "no"} if i == 2 else {}) for i in range(HELD)),
    ),
]

SEQUENCES = [
    grouped(
        "direct: two sequences side by side",
        "direct",
        *of_sequences("direct", (1, "s"), (1, ""), (2, "s"), (1, "e"), (2, ""), (2, "e")),
    ),
    grouped(
        "direct: a slot without a request",
        "direct_three",
        *of_sequences("direct_three", (1, "se"), (2, "s"), (3, "s"), (3, ""), (3, "e"), (2, "e")),
    ),
    grouped(
        "direct: a sequence that waits for a slot",
        "direct_backlog",
        *of_sequences("direct_backlog", (1, "s"), (2, "s"), (3, "se"), (1, "e"), (2, ""), (2, ""), (2, "e")),
    ),
    grouped(
        "oldest: sequences share a batch",
        "oldest",
        *of_sequences("oldest", *((id, "s") for id in (1, 2, 3, 4, 5, 6))),
    ),
    grouped(
        "oldest: a preferred size",
        "oldest_preferred",
        *of_sequences("oldest_preferred", *((id, "s") for id in (1, 2, 3, 4, 5, 6))),
    ),
]

CASES = [*BATCHES, *SEQUENCES]
