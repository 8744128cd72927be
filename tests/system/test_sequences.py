"""Sequences: one instance for each, in order, with control inputs; tritonclient over HTTP and gRPC asks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.system.conftest import Background, Repository, Server, Start, eventually, serving, together

CONFIG = """
backend: "python"
max_batch_size: {size}
input [{{ name: "IN" data_type: TYPE_INT32 dims: [ {dims} ] }}]
output [{{ name: "SUM" data_type: TYPE_INT32 dims: [ 1 ] }}, {{ name: "SEEN" data_type: TYPE_STRING dims: [ 1 ] }}]
instance_group [{{ kind: KIND_CPU count: {count} }}]
sequence_batching {{ {strategy}
  control_input [
    {{ name: "START" control [{{ kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }}] }},
    {{ name: "END" control [{{ kind: CONTROL_SEQUENCE_END fp32_false_true: [ -1, 1 ] }}] }},
    {{ name: "READY" control [{{ kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] }}] }},
    {{ name: "CORRID" control [{{ kind: CONTROL_SEQUENCE_CORRID data_type: {id} }}] }}
  ]
}}
"""


def config(strategy: str, size: int = 4, count: int = 1, dims: str = "1", id: str = "TYPE_UINT64") -> str:
    return CONFIG.format(strategy=strategy, size=size, count=count, dims=dims, id=id)


# Answers the running sum of its sequence, and which batch it was in: [corrid, start, end, ready, value] of each place.
# A value of 100 lets the execution last as long as the file is there that the model has made.
SUMS = """
def initialize(self, args):
    self.sums, self.name = {}, args["model_instance_name"]

def execute(self, requests):
    import json

    rows = []
    for request in requests:
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        assert all(array.shape == (1, 1) for name, array in given.items() if name != "IN"), given
        id = given["CORRID"].item()
        row = [id.decode() if isinstance(id, bytes) else id]
        row += [given[name].item() for name in ("START", "END", "READY")] + [int(given["IN"].flat[0])]
        rows.append(row)
        if row[3]:
            assert (request.correlation_id(), bool(request.flags() & 1)) == (row[0], bool(row[1])), row
    for value in {row[4] for row in rows if row[3] and row[4] >= 100}:
        gate = os.path.join(pb_utils.get_model_dir(), str(value))
        open(gate, "w").close()
        while os.path.exists(gate):
            time.sleep(0.002)
    answers = []
    for id, start, end, ready, value in rows:
        if ready:
            self.sums[id] = value + (0 if start else self.sums[id])
        seen = np.array([[json.dumps([self.name, rows])]], object)
        total = np.array([[self.sums.get(id, 0)]], np.int32)
        answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("SUM", total), pb_utils.Tensor("SEEN", seen)]))
    return answers
"""


# Asks "two" the same, as part of the same sequence.
CALLER = """
def execute(self, requests):
    answers = []
    for request in requests:
        call = pb_utils.InferenceRequest(
            model_name="two", inputs=request.inputs(), requested_output_names=["SUM", "SEEN"],
            correlation_id=request.correlation_id(), flags=request.flags(),
        )
        response = call.exec()
        if response.has_error():
            answers.append(pb_utils.InferenceResponse(error=pb_utils.TritonError(response.error().message())))
        else:
            answers.append(pb_utils.InferenceResponse(response.output_tensors()))
    return answers
"""


class Models:
    """A server with the models of this file, and clients of it."""

    def __init__(self, server: Server, repository: Repository) -> None:
        self.server = server
        self.repository = repository
        self.http = tritonclient.http.InferenceServerClient(server.http)  # for one thread
        self.grpc = tritonclient.grpc.InferenceServerClient(server.grpc)

    def infer(self, model: str, id: int | str, value: int, flags: str = "", grpc: bool = True, **more: Any) -> Answer:
        module, client = (tritonclient.grpc, self.grpc) if grpc else (tritonclient.http, self.http)
        tensor = module.InferInput("IN", [1, more.pop("dims", 1)], "INT32")
        tensor.set_data_from_numpy(np.full(tensor.shape(), value, np.int32))
        result = client.infer(
            model, [tensor], sequence_id=id, sequence_start="S" in flags, sequence_end="E" in flags, **more
        )
        name, rows = json.loads(result.as_numpy("SEEN").item())
        return Answer(int(result.as_numpy("SUM").item()), name, rows)

    def start(self, model: str, id: int | str, value: int, flags: str = "", **more: Any) -> Background:
        return Background(1, lambda: self.infer(model, id, value, flags, **more), times=1)

    def hold(self, model: str, id: int | str, value: int, flags: str = "") -> Held:
        """A request inside execute; ``value`` is at least 100."""
        held = Held(self.start(model, id, value, flags), self.repository.path / model / "1" / str(value))
        eventually(held.gate.exists)
        return held

    def refused(self, model: str, id: int | str, value: int = 1, flags: str = "", **more: Any) -> str:
        with pytest.raises(InferenceServerException) as caught:
            self.infer(model, id, value, flags, **more)
        return str(caught.value.message())


class Answer:
    def __init__(self, total: int, instance: str, rows: list[list[Any]]) -> None:
        self.total = total
        self.instance = instance
        self.rows = rows  # of the batch


class Held:
    def __init__(self, work: Background, gate: Any) -> None:
        self.work = work
        self.gate = gate

    def release(self) -> Answer:
        self.gate.unlink()
        return self.result()

    def result(self) -> Answer:
        (answer,) = self.work.stop()
        assert isinstance(answer, Answer)
        return answer


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    repository = Repository(tmp_path_factory.mktemp("models"))
    idle = "max_sequence_idle_microseconds: 600000 "
    slow = "direct { max_queue_delay_microseconds: 60000000 minimum_slot_utilization: 0.5 }"
    repository.add("direct", SUMS, config=config("direct {}"))
    repository.add("two", SUMS, config=config("direct {}", size=2, count=2))
    repository.add("oldest", SUMS, config=config("oldest { max_candidate_sequences: 4 }"))
    repository.add("idle", SUMS, config=config(idle + "direct {}", size=1))
    repository.add("waiting", SUMS, config=config(slow))
    repository.add("shapes", SUMS, config=config("direct {}", dims="-1"))
    repository.add("named", SUMS, config=config("direct {}", id="TYPE_STRING"))
    plain = config("direct {}").split("sequence_batching")[0]
    repository.add("caller", CALLER, config=plain)
    repository.add("small", SUMS, config=config("direct {}", id="TYPE_INT32"))
    with serving(repository, tmp_path_factory.mktemp("logs")) as start:
        yield Models(start(), repository)


STRATEGIES = pytest.mark.parametrize("model", ["direct", "oldest"])


@STRATEGIES
@pytest.mark.parametrize("grpc", [False, True])
def test_a_sequence_from_start_to_end(models: Models, model: str, grpc: bool) -> None:
    answers = [models.infer(model, 7, value, flags, grpc) for value, flags in ((1, "S"), (2, ""), (3, "E"))]
    assert [answer.total for answer in answers] == [1, 3, 6]
    assert [answer.rows[-1] for answer in answers] == [
        [7, 1, -1.0, True, 1],
        [7, 0, -1.0, True, 2],
        [7, 0, 1.0, True, 3],
    ]
    assert models.infer(model, 7, 5, "SE", grpc).rows == [[7, 1, 1.0, True, 5]]


def test_one_that_never_began_or_has_ended_is_refused(models: Models) -> None:
    text = (
        "inference request for sequence 5 to model 'idle' must specify the START flag on the first request of the "
        "sequence"
    )
    assert models.refused("idle", 5) == text
    assert models.infer("idle", 5, 1, "S").total == 1
    assert models.infer("idle", 5, 2).total == 3
    eventually(lambda: _ended(models, "idle", 5, text))
    assert models.refused("idle", 5, 3) == text
    assert models.infer("idle", 5, 4, "S").total == 4
    assert models.infer("idle", 5, 5, "E").total == 9
    assert models.refused("idle", 5) == text
    assert models.infer("idle", 5, 6, "S").total == 6
    assert models.infer("idle", 5, 7, "S").total == 7
    assert models.infer("idle", 5, 8, "E").total == 15
    warning = (
        "sequence 5 for model 'idle' has a conflict. The previous sequence did not end before this sequence start."
    )
    assert len(models.server.lines(warning)) == 1
    assert (
        models.refused("idle", 0)
        == "inference request to model 'idle' must specify a non-zero or non-empty correlation ID"
    )


def _ended(models: Models, model: str, id: int, text: str) -> bool:
    """A slot for one only: another sequence gets it when this one has been idle for too long."""
    return models.infer(model, id + 1, 1, "SE").total == 1


def test_numbers_and_names_are_different_sequences(models: Models) -> None:
    assert models.infer("named", "7", 1, "S").rows == [["7", 1, -1.0, True, 1]]
    assert models.infer("named", "seven", 10, "S").total == 10
    assert models.infer("named", "7", 2, "E").total == 3
    assert models.infer("named", "seven", 2, "E").total == 12
    for grpc in (False, True):
        text = models.refused("named", 7, 1, "S", grpc=grpc, request_id="r")
        assert text == (
            "[request id: r] sequence batching control 'CORRID' data-type is 'UINT64', but model 'named' expects "
            "'BYTES'"
        )
        text = models.refused("direct", "7", 1, "S", grpc=grpc)
        assert text == (
            "[request id: <id_unknown>] sequence batching control 'CORRID' data-type is 'BYTES', but model 'direct' "
            "expects 'UINT64'"
        )


def test_a_number_is_cut_to_the_type_of_the_input(models: Models) -> None:
    seen = models.refused("small", (1 << 32) + 5, 1, "SE")  # by the model, which compares it with correlation_id()
    assert "AssertionError: [5, 1, 1.0, True, 1]" in seen


def test_a_batch_of_two_is_refused(models: Models) -> None:
    tensor = tritonclient.http.InferInput("IN", [2, 1], "INT32")
    tensor.set_data_from_numpy(np.zeros((2, 1), np.int32))
    with pytest.raises(InferenceServerException) as caught:
        models.http.infer("direct", [tensor], sequence_id=3, sequence_start=True)
    assert caught.value.message() == (
        "inference request to model 'direct' must specify batch-size 1 due to requirements of sequence batcher"
    )


def test_direct_keeps_places_and_fills_them_up(models: Models) -> None:
    before = models.server.statistics("direct")
    held = models.hold("direct", 1, 100, "S")
    others = [models.start("direct", id, id, "S") for id in (2, 3, 4)]
    eventually(lambda: models.server.pending("direct") == 3)
    assert held.release().rows == [[1, 1, -1.0, True, 100]]
    totals = {answer.total for other in others for answer in other.stop()}
    assert totals == {2, 3, 4}
    # Who has which place is a matter of who came first.
    place = {rows[0]: number for number, rows in enumerate(models.infer("direct", 4, 0).rows)}
    last = max((2, 3, 4), key=lambda id: len(models.infer("direct", id, 0).rows))
    answer = models.infer("direct", last, 1)
    assert len(answer.rows) == 4
    assert answer.rows[:3] == [[0, 0, -1.0, False, 0]] * 3
    assert answer.rows[3] == [last, 0, -1.0, True, 1]
    for id in (1, 2, 3, 4):
        models.infer("direct", id, 0, "E")
    after = models.server.statistics("direct")
    assert after["success"]["count"] - before["success"]["count"] == 13 and place


def test_more_sequences_than_slots_wait(models: Models) -> None:
    for id in (1, 2, 3, 4):
        models.infer("two", id, id, "S")
    waiting = [models.start("two", id, id, "SE") for id in (5, 6)]
    eventually(lambda: models.server.pending("two") == 2)
    assert models.infer("two", 1, 1, "E").total == 2
    assert models.infer("two", 2, 1, "E").total == 3
    assert [one.stop()[0].total for one in waiting] == [5, 6]
    for id in (3, 4):
        models.infer("two", id, 0, "E")


def test_sequences_spread_over_instances_and_stay(models: Models) -> None:
    names = {id: models.infer("two", id, 1, "S").instance for id in (1, 2)}
    assert set(names.values()) == {"two_0_0", "two_0_1"}
    for _ in range(3):
        assert {id: models.infer("two", id, 1).instance for id in (1, 2)} == names
    for id in (1, 2):
        models.infer("two", id, 1, "E")


def test_one_that_waits_for_a_slot_for_too_long_is_refused(models: Models) -> None:
    for id in (1, 2, 3, 4):
        models.infer("two", id, id, "S")
    expired = "timeout of the corresponding sequence has been expired"
    assert models.refused("two", 5, 1, "S", timeout=20_000) == expired
    assert models.server.failures("two") == {"REJECTED": 1}
    for id in (1, 2, 3, 4):
        models.infer("two", id, 0, "E")


def test_oldest_takes_what_is_ready_one_of_each_sequence(models: Models) -> None:
    held = models.hold("oldest", 1, 100, "S")
    others = [models.start("oldest", id, id, "S") for id in (2, 3)]
    second = models.start("oldest", 1, 1)
    eventually(lambda: models.server.pending("oldest") == 3)
    held.release()
    (answer,) = second.stop()
    assert answer.total == 101
    for other in others:
        (answer,) = other.stop()
        assert sorted(row[0] for row in answer.rows) in ([1, 2, 3], [2, 3])
    for id in (1, 2, 3):
        models.infer("oldest", id, 0, "E")


def test_a_batch_waits_for_the_slots_that_the_configuration_wants(models: Models) -> None:
    first = models.start("waiting", 1, 1, "SE")
    eventually(lambda: models.server.pending("waiting") == 1)
    answer = models.infer("waiting", 2, 2, "SE")
    assert len(answer.rows) == 2
    assert first.stop()[0].rows == answer.rows


def test_a_batch_has_one_shape(models: Models) -> None:
    held = models.hold("shapes", 1, 100, "S")
    others = [models.start("shapes", 2, 2, "SE", dims=2), models.start("shapes", 1, 1, "E")]
    eventually(lambda: models.server.pending("shapes") == 2)
    held.release()
    wide, narrow = (other.stop()[0] for other in others)
    assert narrow.rows == [[1, 0, 1.0, True, 1], [0, 0, -1.0, False, 0]]
    assert wide.rows == [[0, 0, -1.0, False, 0], [2, 1, 1.0, True, 2]]


@STRATEGIES
def test_one_cancelled_request_ends_its_sequence(models: Models, model: str) -> None:
    failures = models.server.failures(model).get("CANCELED", 0)
    held = models.hold(model, 1, 100, "S")
    tensor = tritonclient.grpc.InferInput("IN", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.ones((1, 1), np.int32))
    errors: list[Any] = []
    queued = []
    for count in (1, 2):
        call = models.grpc.async_infer(model, [tensor], lambda result, error: errors.append(error), sequence_id=1)
        eventually(lambda count=count: models.server.pending(model) == count)  # type: ignore[misc]
        queued.append(call)
    queued[0].cancel()
    eventually(lambda: len(errors) == 2)
    assert all(error.status() == "StatusCode.CANCELLED" for error in errors)
    assert models.server.pending(model) == 0
    held.release()
    assert "must specify the START flag" in models.refused(model, 1)
    assert models.infer(model, 1, 3, "SE").total == 3
    assert models.server.failures(model)["CANCELED"] == failures + 2


def test_sequences_end_with_the_process_that_knew_them(models: Models) -> None:
    held = models.hold("direct", 1, 100, "S")
    _kill(models, "direct")
    with pytest.raises(InferenceServerException, match=r"Stub process 'direct_0_0' is not healthy\."):
        held.result()
    held.gate.unlink()
    assert "must specify the START flag" in models.refused("direct", 1)
    assert models.infer("direct", 1, 2, "SE").total == 2


def _kill(models: Models, model: str) -> None:
    for process in models.server.processes():
        if f"stub: {model}:1 " in " ".join(process.cmdline()):
            process.kill()


def test_a_model_goes_on_with_a_sequence_of_another(models: Models) -> None:
    totals = [models.infer("caller", 77, value, flags).total for value, flags in ((1, "S"), (2, ""), (3, "E"))]
    assert totals == [1, 3, 6]
    assert "sequence 77 to model 'two' must specify the START flag" in models.refused("caller", 77)


def test_many_sequences_at_once_by_stream(models: Models) -> None:
    def one(id: int) -> list[int]:
        totals: list[int] = []
        with tritonclient.grpc.InferenceServerClient(models.server.grpc) as client:
            errors: list[Any] = []

            def on_answer(result: Any, error: Any) -> None:
                errors.append(error) if error else totals.append(int(result.as_numpy("SUM").item()))

            client.start_stream(on_answer)
            for step in range(20):
                tensor = tritonclient.grpc.InferInput("IN", [1, 1], "INT32")
                tensor.set_data_from_numpy(np.full((1, 1), id % 50, np.int32))
                client.async_stream_infer(
                    "two", [tensor], sequence_id=id, sequence_start=step == 0, sequence_end=step == 19
                )
            client.stop_stream()
            assert not errors, errors
        return totals

    results = together(8, [lambda id=id: one(id) for id in range(101, 125)])  # type: ignore[misc]
    assert results == [[id % 50 * step for step in range(1, 21)] for id in range(101, 125)]
    assert models.server.pending("two") == 0


def test_the_first_batch_waits_for_sequences_with_and_without_slots_if_the_environment_says_so(
    start: Start, repository: Repository
) -> None:
    repository.add("m", SUMS, config=config("direct {}", size=2))
    variables = {"TRITONSERVER_DELAY_SCHEDULER": "2", "TRITONSERVER_BACKLOG_DELAY_SCHEDULER": "1"}
    models = Models(start(environ=variables), repository)
    waiting = [models.start("m", id, id, "SE") for id in (1, 2)]
    eventually(lambda: models.server.pending("m") == 2)
    assert models.infer("m", 3, 3, "SE").total == 3
    sizes = [len(one.stop()[0].rows) for one in waiting]  # type: ignore[attr-defined]
    assert sizes == [2, 2]
