"""Models that load and unload other models, or ask whether they are ready."""

from __future__ import annotations

import pytest

from broker.events import Override, Reload, StubSaid
from protocol.errors import InternalError
from protocol.messages import CONTROL, Control, Told
from tests.broker.test_control import Asked, ControlBench, source


@pytest.fixture
def serving():
    """Model "m" serves."""
    bench = ControlBench()
    bench.serve()
    return bench


def test_a_model_loads_another_one_and_is_told(serving):
    key = serving.only()
    serving.says(key, "load", "other", config="{}", files={"file:1/model.py": b"x"})
    assert serving.polls[0][1:3] == ("other", Override("{}", {"file:1/model.py": b"x"}))
    serving.found()
    assert serving.told(key) == []
    serving.bring_up()
    assert serving.told(key) == [Told("T", 7, None)]
    serving.says(key, "unload", "other")
    assert serving.told(key)[1:] == [Told("T", 7, None)]
    serving.says(key, "load", "nope")
    serving.found(error=InternalError("failed to load 'nope', failed to poll from model repository"))
    assert serving.told(key)[2:] == [Told("T", 7, (1, "failed to load 'nope', failed to poll from model repository"))]


@pytest.mark.parametrize("operation", ["load", "unload"])
def test_a_model_cannot_load_or_unload_itself(serving, operation):
    key = serving.only()
    serving.says(key, operation, "m")
    assert serving.told(key) == [Told("T", 7, (3, "model 'm' cannot load or unload itself"))]


@pytest.mark.parametrize(
    "model, version, answer",
    [
        ("m", "", (None, 1.0)),
        ("m", "1", (None, 1.0)),
        ("m", "2", ((2, "Request for unknown model: 'm' version 2 is not found"), 0.0)),
        ("x", "", ((2, "Request for unknown model: 'x' is not found"), 0.0)),
        (
            "m",
            "one",
            (
                (
                    3,
                    "failed to get model version from specified version string 'one' (details: stol), version should "
                    "be an integral value > 0",
                ),
                0.0,
            ),
        ),
    ],
)
def test_a_model_asks_whether_another_one_is_ready(serving, model, version, answer):
    serving.serve(model="asking")
    key = list(serving.alive)[-1]
    serving.says(key, "is_ready", model, version=version)
    assert [told[2:] for told in serving.told(key)] == [answer]


def test_a_model_that_is_not_ready_is_no_error(serving):
    serving.serve(model="asking")
    one, key = serving.alive
    serving.die(one)
    serving.unload("m")
    serving.ask_load("m")
    serving.found()
    serving.says(key, "is_ready", "m")
    assert [told[2:] for told in serving.told(key)] == [(None, 0.0)]


def test_models_wait_until_the_server_has_started(make_bench):
    bench = make_bench(explicit_control=True)
    bench.load("m")
    bench.hello(bench.only())
    for operation in ("load", "unload", "is_ready"):
        bench.tell(StubSaid(bench.only(), Control(CONTROL, 7, operation, "other"), ()))
    assert [message[2] for message in bench.inbox[bench.only()][1:]] == [
        (4, "Failed to process the request for model 'm_0', message: Server not ready")
    ] * 3


def test_a_model_that_loads_another_one_in_initialize_does_not_wait_for_its_own_place(make_bench):
    bench = ControlBench(load_concurrency=1)
    outer = bench.ask_load("outer")
    bench.found()
    (key,) = bench.alive
    bench.hello(key)
    bench.says(key, "load", "inner")
    bench.found()
    (inner,) = [other for other in bench.alive if other != key]
    bench.hello(inner)
    bench.loaded(inner)
    assert len(bench.told(key)) == 1 and not outer.answers
    bench.loaded(key)
    assert outer.error is None


@pytest.mark.parametrize("namespaces, model", [((), "a"), (("r", "s"), "r::a")])
def test_a_load_that_would_wait_for_itself_is_refused(namespaces, model):
    bench = ControlBench(namespaces=namespaces)
    bench.tell(Reload(model, Asked()))
    bench.turn()
    bench.found()
    (a,) = bench.alive
    bench.hello(a)
    bench.says(a, "load", "b")
    bench.found()
    b = list(bench.alive)[-1]
    bench.hello(b)
    bench.says(b, "load", "a")
    assert [told[2] for told in bench.told(b)] == [(3, f"the load of model '{model}' would wait for itself")]


def test_in_finalize_nothing_is_loaded(serving):
    serving.serve(model="asking")
    key = list(serving.alive)[-1]
    serving.unload("asking")
    assert serving.finishing() == [key]
    serving.says(key, "load", "m")
    assert [told[2] for told in serving.told(key)] == [(4, "models cannot be loaded or unloaded in finalize")]


def test_what_a_loading_model_waits_for_does_not_wait_for_its_place_though_others_asked_first():
    bench = ControlBench(load_concurrency=1)
    outer, inner = bench.ask_load("outer"), bench.ask_load("inner")
    bench.found()
    (key,) = bench.alive
    bench.hello(key)
    bench.found()
    assert list(bench.alive) == [key]
    bench.says(key, "load", "inner")
    (other,) = [one for one in bench.alive if one != key]
    bench.hello(other)
    bench.loaded(other)
    assert inner.error is None
    bench.found()
    assert len(bench.told(key)) == 1
    bench.loaded(key)
    assert outer.error is None


def test_what_an_instance_waits_for_that_is_added_does_not_wait_for_its_place():
    bench = ControlBench(load_concurrency=1)
    bench.serve(source("outer", fingerprint="a", files="x"), model="outer")
    outer, inner = bench.ask_load("outer"), bench.ask_load("inner")
    bench.found(source("outer", fingerprint="b", files="x", instances=2))
    (added,) = bench.loading()
    bench.hello(added)
    bench.found()
    assert bench.loading() == [added]
    bench.says(added, "load", "inner")
    (other,) = [key for key in bench.loading() if key != added]
    bench.hello(other)
    bench.loaded(other)
    bench.found()
    assert inner.error is None and len(bench.told(added)) == 1
    bench.loaded(added)
    assert outer.error is None
