"""Ensembles end to end: results over HTTP and gRPC, streams, errors, memory, calls, cancellation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.system.conftest import Background, MiB, Repository, Server, eventually, serving
from tests.system.ensemble_models import add_chain, add_ensemble, step, tensors
from tests.system.grpc_stream import DECOUPLED, streaming

DOUBLE = """
def execute(self, requests):
    return [respond(request, values(request) * 2) for request in requests]
"""
TWO = """
def execute(self, requests):
    return [self.answer(values(request)) for request in requests]
def answer(self, array):
    outputs = [pb_utils.Tensor("OUT", array + 1)]
    if array[0] != 0:
        outputs.append(pb_utils.Tensor("OTHER", array + 2))
    return pb_utils.InferenceResponse(outputs)
"""
ADD = """
def execute(self, requests):
    return [self.answer(request) for request in requests]
def answer(self, request):
    other = pb_utils.get_input_tensor_by_name(request, "OTHER")
    return respond(request, values(request) + (100 if other is None else other.as_numpy()))
"""
FAILING = """
def execute(self, requests):
    return [pb_utils.InferenceResponse(error=pb_utils.TritonError("not here", pb_utils.TritonError.NOT_FOUND))]
"""
# As many responses as IN says, each with its number.
REPEAT = """
def execute(self, requests):
    for request in requests:
        sender = request.get_response_sender()
        for number in range(int(values(request)[0])):
            sender.send(respond(request, np.array([number], np.float32)))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# Writes into its input and passes it on.
IN_PLACE = """
def execute(self, requests):
    return [self.answer(request, values(request)) for request in requests]
def answer(self, request, array):
    array += 1
    return respond(request, array)
"""
POLLING = """
def execute(self, requests):
    pb_utils.Logger.log_info("running")
    deadline = time.monotonic() + 20
    while not requests[0].is_cancelled() and time.monotonic() < deadline:
        time.sleep(0.005)
    pb_utils.Logger.log_info("cancelled" if requests[0].is_cancelled() else "in vain")
    return [pb_utils.InferenceResponse(error=pb_utils.TritonError("gone", pb_utils.TritonError.CANCELLED))]
"""
CALLER = """
def execute(self, requests):
    return [self.answer(request) for request in requests]
def answer(self, request):
    asked = pb_utils.InferenceRequest(model_name="chain", requested_output_names=["OUT"], inputs=request.inputs())
    response = asked.exec()
    if response.has_error():
        return pb_utils.InferenceResponse(error=response.error())
    return respond(request, response.output_tensors()[0].as_numpy() + 0.5)
"""
# Begins nothing before the other one of the two has begun.
MEETING = """
def initialize(self, args):
    names = (args["model_name"], "right" if args["model_name"] == "left" else "left")
    self.mine, self.other = (os.path.join(args["model_repository"], "..", "..", name) for name in names)
def execute(self, requests):
    open(self.mine, "w").close()
    wait_for(self.other)
    return [respond(request, values(request)) for request in requests]
"""
TWO_OUTPUTS = "max_batch_size: 0\n" + tensors("input", "IN") + tensors("output", "OUT", "OTHER")
OPTIONAL = "max_batch_size: 0\n" + tensors("input", "IN", "OTHER?") + tensors("output", "OUT")
BATCHED = "max_batch_size: 4\n" + tensors("input", "IN", dims="2") + tensors("output", "OUT", dims="2")


def add_all(repository: Repository) -> None:
    repository.add("ident")
    repository.add("double", DOUBLE)
    repository.add("batched", DOUBLE, config=BATCHED)
    repository.add("two", TWO, config=TWO_OUTPUTS)
    repository.add("add", ADD, config=OPTIONAL)
    repository.add("failing", FAILING)
    repository.add("repeat", REPEAT, config=DECOUPLED % 1)
    repository.add("in_place", IN_PLACE)
    repository.add("polling", POLLING)
    repository.add("caller", CALLER)
    for name in ("left", "right"):
        repository.add(name, MEETING)
    add_chain(repository, "chain", "double", "double", "in_place")
    add_chain(repository, "idents", "ident", "ident", "ident")
    add_chain(repository, "nested", "chain", "double")
    add_chain(repository, "fails", "double", "failing")
    add_chain(repository, "streams", "repeat", "double")
    add_chain(repository, "polls", "double", "polling")
    join = step("add", {"IN": "a", "OTHER": "b"}, {"OUT": "OUT"})
    add_ensemble(repository, "diamond", step("two", {"IN": "IN"}, {"OUT": "a", "OTHER": "b"}), join)
    other = step("double", {"IN": "IN"}, {"OUT": "b"})
    add_ensemble(repository, "shares", step("in_place", {"IN": "IN"}, {"OUT": "a"}), other, join)
    sides = [step(name, {"IN": "IN"}, {"OUT": tensor}) for name, tensor in (("left", "a"), ("right", "b"))]
    add_ensemble(repository, "meets", *sides, join)
    batched = step("batched", {"IN": "IN"}, {"OUT": "OUT"})
    add_ensemble(repository, "batches", batched, io=BATCHED.split("\n", 1)[1], max_batch_size=4)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = tmp_path_factory.mktemp("ensembles")
    repository = Repository(path / "repository")
    add_all(repository)
    with serving(repository, path) as start:
        yield start()


@pytest.mark.parametrize(
    ("ensemble", "given", "right"),
    [
        ("chain", [1, 2], [5, 9]),
        ("nested", [1, 2], [10, 18]),
        ("diamond", [1, 2], [5, 7]),
        ("shares", [1, 2], [4, 7]),
    ],
)
def test_steps_run_in_the_order_of_their_tensors(
    server: Server, ensemble: str, given: list[float], right: list[float]
) -> None:
    for _ in range(3):
        assert server.post(ensemble, given).data == right


def test_steps_that_need_nothing_of_each_other_run_at_the_same_time(server: Server) -> None:
    assert server.post("meets", [1, 2], timeout_s=20).data == [2, 4]


def test_an_output_that_a_step_does_not_give_is_missing_for_the_next(server: Server) -> None:
    assert server.post("diamond", [0, 1]).data == [101, 102]


def test_both_fronts_of_tritonclient_see_an_ensemble_as_a_model(server: Server) -> None:
    for module, url in ((tritonclient.http, server.http), (tritonclient.grpc, server.grpc)):
        client = module.InferenceServerClient(url)
        tensor = module.InferInput("IN", [3, 2], "FP32")
        tensor.set_data_from_numpy(np.arange(6, dtype=np.float32).reshape(3, 2))
        result = client.infer("batches", [tensor], request_id="mine", sequence_id=7, sequence_start=True)
        np.testing.assert_array_equal(result.as_numpy("OUT"), np.arange(0, 12, 2, np.float32).reshape(3, 2))
        assert client.is_model_ready("batches")
        client.close()
    metadata = server.get("/v2/models/batches").json
    assert (metadata["platform"], metadata["inputs"][0]["shape"]) == ("ensemble", [-1, 2])
    config = server.get("/v2/models/streams/config").json
    assert (config["model_transaction_policy"], config["instance_group"]) == ({"decoupled": True}, [])


def test_a_response_names_the_sequence_and_none_of_the_clients_other_parameters(server: Server) -> None:
    answer = server.post("chain", [1], parameters={"sequence_id": "s", "sequence_end": True, "free": 1})
    assert answer.json["parameters"] == {"sequence_id": "s", "sequence_start": False, "sequence_end": True}


def test_an_error_of_a_step_has_its_kind_and_names_the_ensemble(server: Server) -> None:
    answer = server.post("fails", [1])
    assert (answer.status, answer.error) == (404, "in ensemble 'fails', not here")
    assert server.failures("fails") == {"OTHER": 1}


def test_every_response_of_a_decoupled_step_comes_through_the_stream(server: Server) -> None:
    with streaming(server) as stream:
        for count in (0, 1, 5):
            stream.send("streams", [count])
            answers = stream.until_final()
            assert [one.data for one in answers if one.data is not None] == [[2.0 * n] for n in range(count)]


def test_sixteen_mebibytes_go_from_step_to_step_without_a_copy(server: Server) -> None:
    array = np.arange(4 * MiB, dtype=np.float32)
    before = server.shm_bytes()
    for _ in range(3):
        assert np.array_equal(server.post_binary("idents", array).array, array)
        # The client's tensor, what a step has made of it, and what the next one is making of that.
        assert server.shm_bytes() < before + 52 * MiB


def test_a_model_calls_an_ensemble(server: Server) -> None:
    assert server.post("caller", [1, 2]).data == [5.5, 9.5]


def test_cancelling_reaches_the_step_that_runs(server: Server) -> None:
    client = tritonclient.grpc.InferenceServerClient(server.grpc)
    tensor = tritonclient.grpc.InferInput("IN", [1], "FP32")
    tensor.set_data_from_numpy(np.ones(1, np.float32))
    asked = client.async_infer("polls", [tensor], lambda result, error: None)
    server.wait_for_line('"running"')
    asked.cancel()
    server.wait_for_line('"cancelled"')
    eventually(lambda: server.failures("polls") == {"CANCELED": 1})
    client.close()


def test_statistics_count_the_ensemble_and_its_models(server: Server) -> None:
    def count(model: str) -> int:
        return int(server.statistics(model)["success"]["count"])

    before = {model: count(model) for model in ("nested", "chain", "double")}
    server.post("nested", [1])
    assert {model: count(model) - before[model] for model in before} == {"nested": 1, "chain": 1, "double": 3}
    assert server.pending("nested") == 0


def test_an_ensemble_that_does_not_fit_its_models_is_refused_with_the_reason(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
    repository.add("double", DOUBLE)
    add_ensemble(repository, "wrong", step("double", {"INN": "IN"}, {"OUT": "OUT"}))
    add_chain(repository, "right", "double", "double")
    with serving(repository, tmp_path) as start:
        server = start("--exit-on-error=false")
        assert server.lines(
            "in ensemble wrong, ensemble tensor IN is mapping to non-existing input INN in model double"
        )
        assert "not found" in server.post("wrong", [1]).error
        assert server.post("right", [1]).data == [4]


def test_ensembles_are_loaded_with_their_models_go_with_them_and_come_back(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
    repository.add("double", DOUBLE)
    repository.add("ident")
    add_chain(repository, "inner", "double", "double")
    add_chain(repository, "outer", "inner", "ident")
    with serving(repository, tmp_path) as start:
        server = start("--model-control-mode=explicit", "--load-model=inner")

        def control(model: str, verb: str, **parameters: object) -> None:
            body = json.dumps({"parameters": parameters}).encode()
            assert server.call("POST", f"/v2/repository/models/{model}/{verb}", body).status == 200

        def serve() -> set[str]:
            return {key.split(":")[0] for key, row in server.index().items() if row.get("state") == "READY"}

        assert serve() == {"inner", "double"}
        control("outer", "load")
        assert serve() == {"outer", "inner", "double", "ident"}
        control("double", "unload")
        assert serve() == {"ident"}
        control("double", "load")
        assert serve() == {"outer", "inner", "double", "ident"}
        assert server.post("outer", [1]).data == [4]
        control("outer", "unload", unload_dependents=True)
        assert serve() == {"inner", "double"}  # which somebody has asked for by name


def test_a_model_of_an_ensemble_is_loaded_again_under_load_and_no_request_fails(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
    model = repository.add("double", DOUBLE) / "model.py"
    ensemble = add_chain(repository, "chain", "double", "double", "double") / "config.pbtxt"
    with serving(repository, tmp_path) as start:
        server = start("--model-control-mode=explicit", "--load-model=*")
        asking = Background(4, lambda: server.post("chain", [1, 2]).data)
        for _ in range(3):
            for name, path in (("double", model), ("chain", ensemble)):
                path.write_text(path.read_text() + "\n# again\n")
                assert server.call("POST", f"/v2/repository/models/{name}/load").status == 200
        answers = asking.stop()
        assert len(answers) > 10
        assert all(answer == [8, 16] for answer in answers)
