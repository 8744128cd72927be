"""Schedulers of the repository ``scheduling``: queue policies, sequences, cache, warm-up, shares of instances."""

from __future__ import annotations

from typing import Any

from tests.conformance.held_cases import rows
from tests.conformance.requests import Burst, Case, Http, case, http, infer, output, tensor

BUSY = {"sleep_ms": 600}  # of the request that keeps the only instance busy while others come


def scheduling(name: str, *steps: Any) -> Case:
    return case(f"scheduling: {name}", *steps, repository="scheduling")


def stats(model: str) -> Http:
    return http("GET", f"/v2/models/{model}/stats")


def behind(name: str, model: str, *parameters: dict[str, Any]) -> Case:
    """Requests that come one after the other while the model's only instance is busy."""
    waiting = [rows(model, number, parameters=each) for number, each in enumerate(parameters, 1)]
    burst = Burst(model, (rows(model, 0, parameters=BUSY), *waiting), executing=1)
    return scheduling(name, burst, stats(model))


def step(model: str, x: int, sequence: int | str | None, flags: str = "", **members: Any) -> Http:
    parameters = {"sequence_start": "s" in flags, "sequence_end": "e" in flags}
    return rows(
        model, x, parameters=parameters if sequence is None else {"sequence_id": sequence, **parameters}, **members
    )


POLICIES = [
    behind("more than may wait", "few", {}, {}, {}, {}),
    scheduling(
        "more than may wait for a model without batches",
        Burst(
            "few_unbatched",
            tuple(
                infer("few_unbatched", [tensor("X", "INT32", [1], [n])], parameters={} if n else BUSY) for n in range(5)
            ),
            executing=1,
        ),
        stats("few_unbatched"),
    ),
    behind("requests that wait too long", "expiring", {}, {}),
    behind("a timeout of one's own", "overridden", {"timeout": 100000}, {}, {"timeout": 100000}),
    behind("a timeout of one's own where none is allowed", "not_allowed", {"timeout": 100000}, {}),
    behind("a timeout of one's own where there is no default", "not_overridden", {"timeout": 100000}, {}),
    behind("what waits too long is put off", "putting_off", {"timeout": 100000}, {}, {"timeout": 100000}, {}),
    behind(
        "a level's own limit",
        "levels_of_policies",
        {"priority": 3},
        {"priority": 1},
        {"priority": 1},
        {"priority": 3},
        {"priority": 2},
    ),
    behind("preferred sizes, while the instance is busy", "preferred", {}, {}, {}, {}),
    scheduling(
        "answers in the order of the requests",
        Burst(
            "ordered_two",
            (rows("ordered_two", 0, parameters={"sleep_ms": 700}), rows("ordered_two", 1)),
            executing=2,
            ordered=True,
        ),
    ),
    scheduling(
        "answers in any order",
        Burst("two", (rows("two", 0, parameters={"sleep_ms": 700}), rows("two", 1)), executing=2, ordered=True),
    ),
    scheduling("no scheduler", rows("none", 0, 2), rows("none", 1), stats("none")),
    behind("no scheduler, while the instance is busy", "none_waiting", {}, {}, {}),
    scheduling("too large a batch", rows("batched", 0, 9)),
]

SEQUENCES = [
    scheduling(
        "direct: what a model sees",
        step("direct", 0, 5, "s"),
        step("direct", 1, 5),
        step("direct", 2, 5, "e"),
        stats("direct"),
    ),
    scheduling(
        "direct: the second slot alone",
        step("direct_slots", 0, 1, "s"),
        step("direct_slots", 1, 2, "s"),
        step("direct_slots", 2, 2),
        step("direct_slots", 3, 1, "e"),
        step("direct_slots", 4, 2, "e"),
        step("direct_slots", 5, 3, "se"),
    ),
    scheduling(
        "direct: a model without batches",
        *(
            infer(
                "direct_single",
                [tensor("X", "INT32", [1], [n])],
                parameters={"sequence_id": 4, "sequence_start": n == 0, "sequence_end": n == 2},
            )
            for n in range(3)
        ),
    ),
    scheduling("oldest: what a model sees", *(step("oldest", n, 4, f) for n, f in enumerate(["s", "", "e"]))),
    scheduling(
        "oldest: two sequences",
        *(step("oldest", n, id, f) for n, (id, f) in enumerate([(1, "s"), (2, "s"), (2, ""), (1, "e"), (2, "e")])),
        stats("oldest"),
    ),
    scheduling("ids that are texts", *(step("text_ids", n, "one", f) for n, f in enumerate(["s", "", "e"]))),
    scheduling(
        "no id", step("direct_refused", 0, None, "s"), step("oldest", 0, None, "s"), step("direct_refused", 0, 0, "s")
    ),
    scheduling("an empty id", step("text_ids", 0, "", "s")),
    scheduling(
        "no start", step("direct_refused", 0, 77), step("oldest", 0, 77, "e", id="mine"), step("text_ids", 0, "no")
    ),
    scheduling("after the end", step("direct_over", 0, 8, "se"), step("direct_over", 1, 8)),
    scheduling(
        "a start in the midst",
        step("direct_again", 0, 9, "s"),
        step("direct_again", 1, 9),
        step("direct_again", 2, 9, "s"),
        step("direct_again", 3, 9, "e"),
        step("direct_again", 4, 9),
    ),
    scheduling(
        "a batch of two",
        rows("direct_refused", 0, 2, parameters={"sequence_id": 3, "sequence_start": True}),
        rows("oldest", 0, 2, parameters={"sequence_id": 3, "sequence_start": True}),
    ),
    scheduling(
        "the signature of a model of sequences",
        http("GET", "/v2/models/direct"),
        infer("direct", [tensor("X", "INT32", [1, 1], [1]), tensor("START", "INT32", [1, 1], [1])]),
    ),
    scheduling("an id of the wrong kind", step("direct_refused", 0, "text", "s"), step("text_ids", 0, 12, "se")),
    scheduling(
        "a sequence that waits for the only slot",
        step("brief", 0, 1, "s"),
        Burst("brief", (step("brief", 1, 2, "s"),), executing=1),
        step("brief", 2, 1),
    ),
]

CACHE = [
    scheduling(
        "the cache, batched",
        rows("cached", 1),
        rows("cached", 1),
        rows("cached", 2),
        rows("cached", 1, id="other"),
        stats("cached"),
    ),
    scheduling(
        "the cache, without batches",
        rows("cached_alone", 1, 2),
        rows("cached_alone", 1, 2),
        rows("cached_alone", 3, 2),
        stats("cached_alone"),
    ),
    scheduling("the cache: other parameters", rows("cached", 3), rows("cached", 3, parameters={"free": 1})),
    scheduling("the cache: another shape", rows("cached_alone", 5, 2), rows("cached_alone", 5, 1, width=2)),
    scheduling("the cache: an error", *(rows("cached_alone", 7, parameters={"fails": "no"}) for _ in range(2))),
    *(
        scheduling(
            f"the cache and ensembles: {ensemble}",
            *(rows(ensemble, 1, outputs=[output("OUT0")]) for _ in range(3)),
            *(stats(model) for model in (ensemble, part)),
        )
        for ensemble, part in (("cached_below", "cached_part"), ("cached_above", "none"))
    ),
]

WARM_UP = [
    scheduling("warm-up is not counted", stats("warm"), rows("warm", 0), stats("warm")),
    scheduling("warm-up of sequences", step("warm_sequences", 0, 1, "s"), step("warm_sequences", 1, 1, "e")),
]

INSTANCES = [
    scheduling(
        "resources for one instance at a time",
        Burst(
            "resources",
            (rows("resources", 0, parameters={"sleep_ms": 700}), rows("resources", 1)),
            executing=2,
            ordered=True,
        ),
    ),
    scheduling("passive instances", *(rows("passive", number) for number in range(3))),
]

CASES = [*POLICIES, *SEQUENCES, *CACHE, *WARM_UP, *INSTANCES]
