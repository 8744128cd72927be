"""What executed batches add to the figures of their model."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from broker.instance import Dispatched
from broker.queue import Pending, Timing
from broker.tally import Tally
from metrics.recorder import ModelRecorder
from protocol.errors import ErrorKind
from protocol.messages import Executed, Request, Response

NOW = 5_000_000_000
TIMES = st.tuples(*[st.integers(0, 10**9)] * 3)
ROWS = st.lists(st.integers(1, 3), min_size=1, max_size=3)  # the batch sizes of a batch's requests
BATCHES = st.lists(st.tuples(ROWS, TIMES, st.integers(0, 9)), max_size=8)


@dataclass(eq=False)
class Version:
    recorder: ModelRecorder


def pending(rows: int, whole: Pending | None = None) -> Pending:
    return Pending(Request(1, "m", 1, []), (), None, rows, NOW - 1000, whole=whole)


def figures(recorder: ModelRecorder) -> dict[str, object]:
    recorder.check()
    batches = {size: (one.count, one.input_ns, one.infer_ns, one.output_ns) for size, one in recorder.batches.items()}
    names = ("success", "success_ns", "queue_ns", "compute_input_ns", "compute_infer_ns", "compute_output_ns")
    more = ("inference_count", "execution_count", "last_inference_ms", "failures")
    return {"batches": batches, **{name: getattr(recorder, name) for name in (*names, *more)}}


@given(BATCHES)
def test_batches_that_are_alike_count_as_if_each_came_alone(batches):
    together, alone = Version(ModelRecorder("m", 1)), Version(ModelRecorder("m", 1))
    tally, others = Tally(7), Tally(7)
    for rows, times, places in batches:
        requests = [pending(one) for one in rows]
        batch = Dispatched(1, requests, NOW - 500, places)
        tally.executed(together, batch, Executed(1, *times, False, []), NOW)
        alone.recorder.executed(places or sum(rows), *times)
        for request in requests:
            others.ended(alone, request, Timing(NOW - 500, *times), NOW)
    tally.count()
    assert figures(together.recorder) == figures(alone.recorder)
    tally.count()
    assert figures(together.recorder) == figures(alone.recorder)


def test_an_ensemble_counts_as_one_execution_as_long_as_its_steps():
    step, ensemble, tally = Version(ModelRecorder("m", 1)), Version(ModelRecorder("e", 1)), Tally(0)
    whole = pending(2)
    whole.spent = Timing(NOW - 900)
    for times in ((1, 2, 3), (10, 20, 30)):
        tally.executed(step, Dispatched(1, [pending(2, whole)], NOW), Executed(1, *times, False, []), NOW)
    tally.ended_flow(ensemble, whole, Response(1, []), NOW)
    tally.count()
    assert figures(ensemble.recorder) == {
        "batches": {2: (1, 11, 22, 33)},
        "success": 1,
        "success_ns": 1000,
        "queue_ns": 100,
        "compute_input_ns": 11,
        "compute_infer_ns": 22,
        "compute_output_ns": 33,
        "inference_count": 2,
        "execution_count": 1,
        "last_inference_ms": NOW // 1_000_000,
        "failures": {"BACKEND": 0, "CANCELED": 0, "OTHER": 0, "REJECTED": 0},
    }


def test_of_a_batch_that_failed_in_part_each_request_counts_as_it_ended():
    version, tally = Version(ModelRecorder("m", 1)), Tally(0)
    requests = [pending(1) for _ in range(3)]
    requests[1].error = (int(ErrorKind.INTERNAL), "no")
    requests[2].error = (int(ErrorKind.CANCELLED), "")
    tally.failed(version, Dispatched(1, requests, NOW), Timing(NOW, 1, 2, 3), NOW)
    counted = figures(version.recorder)
    assert counted["failures"] == {"BACKEND": 1, "CANCELED": 1, "OTHER": 0, "REJECTED": 0}
    assert (counted["batches"], counted["success"], counted["execution_count"]) == ({3: (1, 1, 2, 3)}, 1, 1)
