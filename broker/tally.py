"""Statistics of requests that models have answered; of most of them later, once the clients have their answers."""

from __future__ import annotations

from broker.instance import Dispatched
from broker.model import ModelVersion
from broker.queue import Pending, Timing
from metrics.recorder import BACKEND, CANCELED, OTHER
from protocol.errors import ErrorKind
from protocol.messages import Executed, Response

# Why a request failed, for nv_inference_request_failure; every other kind is the model's own (BACKEND).
REASONS = {int(ErrorKind.CANCELLED): CANCELED}

_Alike = tuple[ModelVersion, int, int, int]  # requests, inferences and batch size of one execution
_Times = tuple[int, int, int, int, int]  # total and queue, summed over its requests; input, infer and output


class Tally:
    """What ends well is counted by ``count``, the rest at once."""

    def __init__(self, epoch_ms: int) -> None:
        """``epoch_ms`` turns ``now`` into wall-clock milliseconds."""
        self._epoch_ms = epoch_ms
        self._executed: list[tuple[ModelVersion, Dispatched, Executed, int]] = []
        self._flows: list[tuple[ModelVersion, Pending, int]] = []

    def executed(self, version: ModelVersion, batch: Dispatched, executed: Executed, now: int) -> None:
        """All requests of a batch have ended well, each by the one response that it has here."""
        self._executed.append((version, batch, executed, now))

    def failed(self, version: ModelVersion, batch: Dispatched, timing: Timing, now: int) -> None:
        """All requests of a batch have ended, not all of them well."""
        version.recorder.executed(batch.batch_size, timing.input_ns, timing.infer_ns, timing.output_ns)
        for pending in batch.requests:
            self.ended(version, pending, timing, now)

    def ended(self, version: ModelVersion, pending: Pending, timing: Timing, now: int) -> None:
        """A request that its model has answered; an error among its responses makes it a failure."""
        input_ns, infer_ns, output_ns = timing.input_ns, timing.infer_ns, timing.output_ns
        if pending.whole is not None:
            _spend(pending.whole, input_ns, infer_ns, output_ns)
        total_ns = now - pending.arrived_ns
        if pending.error is not None:
            version.recorder.failed(REASONS.get(pending.error[0], BACKEND), total_ns)
            return
        queue_ns = timing.sent_ns - pending.arrived_ns
        now_ms = now // 1_000_000 + self._epoch_ms
        version.recorder.succeeded(pending.batch_size, total_ns, queue_ns, input_ns, infer_ns, output_ns, now_ms)

    def ended_flow(self, version: ModelVersion, pending: Pending, response: Response, now: int) -> None:
        """A request to an ensemble has ended. It counts as one execution that takes as long as all its steps."""
        if response.error is None:
            self._flows.append((version, pending, now))
        else:
            version.recorder.failed(REASONS.get(response.error[0], OTHER), now - pending.arrived_ns)

    def count(self) -> None:
        """Of executions that are alike, as those of a train are, the sums."""
        alike: dict[_Alike, list[_Times]] = {}
        now = 0
        for version, batch, (_, input_ns, infer_ns, output_ns, _, _, _, _), now in self._executed:
            pendings = batch.requests
            requests = len(pendings)
            inferences = arrived_ns = 0
            for pending in pendings:
                inferences += pending.batch_size
                arrived_ns += pending.arrived_ns
                if pending.whole is not None:
                    _spend(pending.whole, input_ns, infer_ns, output_ns)
            total_ns, queue_ns = requests * now - arrived_ns, requests * batch.sent_ns - arrived_ns
            key = version, requests, inferences, batch.places or inferences
            alike.setdefault(key, []).append((total_ns, queue_ns, input_ns, infer_ns, output_ns))
        self._executed.clear()
        for version, pending, now in self._flows:
            spent = pending.spent
            assert spent is not None
            input_ns, infer_ns, output_ns = spent.input_ns, spent.infer_ns, spent.output_ns
            if pending.whole is not None:
                _spend(pending.whole, input_ns, infer_ns, output_ns)
            total_ns, queue_ns = now - pending.arrived_ns, spent.sent_ns - pending.arrived_ns
            key = version, 1, pending.batch_size, pending.batch_size
            alike.setdefault(key, []).append((total_ns, queue_ns, input_ns, infer_ns, output_ns))
        self._flows.clear()
        for key, times in alike.items():
            self._record(key, times, now)

    def _record(self, alike: _Alike, times: list[_Times], now: int) -> None:
        version, requests, inferences, batch_size = alike
        count = len(times)
        total_ns, queue_ns, input_ns, infer_ns, output_ns = map(sum, zip(*times, strict=True))
        version.recorder.executed(batch_size, input_ns, infer_ns, output_ns, count)
        version.recorder.succeeded(
            inferences * count,
            total_ns,
            queue_ns,
            requests * input_ns,
            requests * infer_ns,
            requests * output_ns,
            now // 1_000_000 + self._epoch_ms,
            requests * count,
        )


def _spend(whole: Pending, input_ns: int, infer_ns: int, output_ns: int) -> None:
    """A step's times are its request's, too."""
    spent = whole.spent
    assert spent is not None
    spent.input_ns += input_ns
    spent.infer_ns += infer_ns
    spent.output_ns += output_ns
