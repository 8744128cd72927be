"""The response cache end to end: answers, statistics and metrics of one server that has it, and of one that has not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.system.conftest import AS_STACK, CONFIG, MiB, Repository, Server, Start, eventually, serving
from tests.system.ensemble_models import add_chain
from tests.system.test_model_control import EXPLICIT, change, control

CACHED = CONFIG % 1 + "response_cache { enable: true }\n"
# What it gets, and in the last element how often it was executed.
COUNTING = """
count = 0
def execute(self, requests):
    return [self.answer(request) for request in requests]
def answer(self, request):
    array = values(request)
    self.count += 1
    if array.size and array[0] < 0:
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"negative, the {self.count}th"))
    return respond(request, np.append(array, np.float32(self.count)))
"""
# Writes into what the model that it calls has answered.
CALLING = """
def execute(self, requests):
    return [self.answer(request) for request in requests]
def answer(self, request):
    tensor = pb_utils.Tensor("IN", values(request))
    call = pb_utils.InferenceRequest(model_name="counting", requested_output_names=["OUT"], inputs=[tensor])
    array = pb_utils.get_output_tensor_by_name(call.exec(), "OUT").as_numpy()
    try:
        array += 100
    except ValueError:
        array = array + 100
    return respond(request, array)
"""
IN_PLACE = """
def execute(self, requests):
    return [self.answer(request, values(request)) for request in requests]
def answer(self, request, array):
    array += 1000
    return respond(request, array)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory: Path = tmp_path_factory.mktemp("models")
    repository = Repository(directory)
    repository.add("counting", COUNTING, config=CACHED)
    batched = CACHED.replace("max_batch_size: 0", "max_batch_size: 8")
    ordered = "dynamic_batching { preserve_ordering: true max_queue_delay_microseconds: 20000 }\n"
    repository.add("batched", COUNTING, config=batched + ordered)
    repository.add("calling", CALLING)
    repository.add("in_place", IN_PLACE)
    add_chain(repository, "chain", "counting", "in_place")
    whole = add_chain(repository, "whole", "counting", "in_place") / "config.pbtxt"
    whole.write_text(whole.read_text() + "response_cache { enable: true }\n")
    with serving(repository, tmp_path_factory.mktemp("logs")) as start:
        yield start(EXPLICIT, "--load-model=*", f"--cache-config=local,size={64 * MiB}")


def counts(server: Server, model: str) -> dict[str, int]:
    return {name: one["count"] for name, one in server.statistics(model).items()}


def test_the_second_request_is_answered_as_the_first_was(server):
    with tritonclient.grpc.InferenceServerClient(server.grpc) as grpc:
        http = tritonclient.http.InferenceServerClient(server.http)
        answers = []
        for module, client in ((tritonclient.http, http), (tritonclient.grpc, grpc), (tritonclient.http, http)):
            tensor = module.InferInput("IN", [2], "FP32")
            tensor.set_data_from_numpy(np.array([1, 2], np.float32))
            answers.append(client.infer("counting", [tensor]).as_numpy("OUT").tolist())
        assert answers[0] == answers[1] == answers[2]
        (stats,) = grpc.get_inference_statistics("counting").model_stats
        found = stats.inference_stats
        assert (found.cache_hit.count, found.cache_miss.count, found.success.count) == (2, 1, 3)
        assert (stats.inference_count, stats.execution_count, found.compute_infer.count) == (1, 1, 1)
        assert found.cache_hit.ns > 0 and found.cache_miss.ns > 0
        assert grpc.get_model_config("counting").config.response_cache.enable
        http.close()
    assert server.metric("nv_cache_num_hits_per_model", "counting") == 2
    assert server.metric("nv_cache_num_misses_per_model", "counting") == 1
    assert server.metric("nv_inference_request_success", "counting") == 3
    assert server.metric("nv_inference_count", "counting") == 1
    assert not [line for line in server.exposition() if "nv_cache" in line and "calling" in line]
    assert "nv_cache_num_hits 2" in server.exposition()


def test_what_differs_in_anything_that_a_model_may_look_at_is_another_request(server):
    first = server.post("counting", [3, 4]).data
    assert server.post("counting", [3, 4], id="another", parameters={"priority": 0}).data == first
    others = [
        server.post("counting", [3, 5]),
        server.post("counting", [3, 4, 0]),
        server.post("counting", [3, 4], parameters={"temperature": 0.5}),
    ]
    assert len({tuple(one.data[-1:]) for one in others} | {tuple(first[-1:])}) == 4


def test_an_error_is_told_each_time_anew(server):
    before = counts(server, "counting")
    first, second = (server.post("counting", [-1]).error for _ in range(2))
    assert first.startswith("negative, ") and second.startswith("negative, ") and first != second
    after = counts(server, "counting")
    assert after["fail"] - before["fail"] == 2
    assert after["cache_hit"] == before["cache_hit"] and after["cache_miss"] == before["cache_miss"]


def test_large_tensors_are_kept_whole(server):
    array = np.arange(2 * MiB, dtype=np.float32)
    first, second = (server.post_binary("counting", array).array for _ in range(2))
    assert np.array_equal(first, second) and np.array_equal(first[:-1], array)
    array[-1] += 1
    assert server.post_binary("counting", array).array[-1] == first[-1] + 1


def test_an_empty_tensor_is_kept_too(server):
    assert server.post("counting", []).data == server.post("counting", []).data


def test_a_batched_model_is_asked_only_what_nobody_has_asked_before(server):
    def ask(value: float) -> list[float]:
        body = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1, 1], "data": [value]}]}
        return list(
            server.call("POST", "/v2/models/batched/infer", json.dumps(body).encode()).json["outputs"][0]["data"]
        )

    first = [ask(value) for value in (1, 2)]
    assert [ask(value) for value in (2, 1)] == first[::-1]
    assert counts(server, "batched")["cache_hit"] == 2


def test_a_call_of_a_model_is_answered_from_the_cache_and_may_write_to_what_it_gets(server):
    answers = [server.post("calling", [7]).data for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    assert server.post("counting", [7]).data == [value - 100 for value in answers[0]]


def test_a_step_of_an_ensemble_is_answered_from_the_cache_and_the_next_may_write_to_it(server):
    before = counts(server, "counting")["cache_hit"]
    answers = [server.post("chain", [8]).data for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    assert server.post("counting", [8]).data == [value - 1000 for value in answers[0]]
    assert counts(server, "counting")["cache_hit"] - before == 3
    assert counts(server, "chain")["cache_hit"] == 0


def test_an_ensemble_is_answered_as_a_whole(server):
    before = counts(server, "in_place")["success"]
    answers = [server.post("whole", [9]).data for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    assert counts(server, "in_place")["success"] - before == 1
    found = counts(server, "whole")
    assert (found["success"], found["cache_hit"], found["cache_miss"]) == (3, 2, 1)


def test_a_reload_forgets_and_an_unload_takes_the_figures_along(start: Start, repository: Repository):
    directory = repository.add("m", COUNTING, config=CACHED)
    server = start(EXPLICIT, "--load-model=m", "--cache-config=local,size=1000000")
    add_chain(repository, "e", "m")
    (repository.path / "e" / "config.pbtxt").open("a").write("response_cache { enable: true }\n")
    assert control(server, "load", "e")[0] == 200
    assert server.post("m", [1]).data == server.post("m", [1]).data == [1, 1]
    assert server.post("e", [2]).data == server.post("e", [2]).data == [2, 2]
    change(directory, COUNTING.replace("count = 0", "count = 10"))
    assert control(server, "load", "m")[0] == 200
    assert server.post("m", [1]).data == [1, 11]
    assert server.post("e", [2]).data == [2, 12]
    assert control(server, "unload", "m")[0] == 200
    eventually(lambda: not [line for line in server.exposition() if "per_model" in line])
    assert "nv_cache_num_entries 0" in server.exposition()


def test_a_small_cache_forgets_what_was_not_asked_for_lately(start: Start, repository: Repository):
    repository.add("m", COUNTING, config=CACHED)
    server = start("--response-cache-byte-size=1000")
    for value in (1, 2, 3, 1, 4, 1):  # room for three
        server.post("m", [value])
    assert server.post("m", [1]).data == [1, 1]
    assert server.post("m", [2]).data == [2, 5]
    exposition = server.exposition()
    assert "nv_cache_num_evictions 2" in exposition and "nv_cache_num_entries 3" in exposition
    array = np.zeros(1000, np.float32)
    assert server.post_binary("m", array).status == 200
    eventually(lambda: server.lines("Failed to insert key", "is greater than total cache size: 1000"))
    assert server.lines("Response Cache is created", "1000")
    assert AS_STACK or server.lines("cache_enabled", "1")


def test_a_server_without_a_cache_serves_all_the_same(start: Start, repository: Repository):
    repository.add("m", COUNTING, config=CACHED)
    server = start()
    assert [server.post("m", [1]).data[-1] for _ in range(2)] == [1, 2]
    assert len(server.lines("responses are not cached", "model=m")) == 1
    assert not [line for line in server.exposition() if "nv_cache" in line]
    assert counts(server, "m")["cache_miss"] == 0


@pytest.mark.parametrize(
    "more, why",
    [
        ("model_transaction_policy { decoupled: true }", "'decoupled' transaction policy"),
        ("sequence_batching { }", "sequence batching scheduler"),
    ],
)
def test_models_that_cannot_be_cached_are_refused(start: Start, repository: Repository, more: str, why: str):
    repository.add("m", COUNTING, config=CACHED + more)
    server = start("--cache-config=local,size=1000000", "--exit-on-error=false")
    text = f"Response Cache does not currently support model m with {why}. Please disable the response cache."
    assert server.lines(text)
    assert not server.ready("m")


def test_an_ensemble_with_a_model_that_cannot_be_cached_is_refused(start: Start, repository: Repository):
    repository.add("m", COUNTING, config=CONFIG % 1 + "model_transaction_policy { decoupled: true }")
    with (add_chain(repository, "e", "m") / "config.pbtxt").open("a") as config:
        config.write("response_cache { enable: true }\n")
    server = start("--cache-config=local,size=1000000", "--exit-on-error=false")
    assert server.lines("Response Cache does not currently support model e with 'decoupled' transaction policy.")
    assert server.ready("m") and not server.ready("e")
