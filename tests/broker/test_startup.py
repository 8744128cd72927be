"""How model versions come up, and how a failure on the way is reported."""

from __future__ import annotations

import json

from broker.backends import Backend
from broker.events import StubSaid
from protocol.messages import FAILED, HELLO, READY, VERSION, Failed, Hello, Load, Ready


def index(bench):
    return [(row.name, row.version, row.state, row.reason) for row in bench.core.registry.index(ready=False)]


def test_a_version_is_ready_when_every_instance_is(make_bench):
    bench = make_bench()
    bench.load(instances=2)
    one, two = bench.alive
    bench.hello(one)
    bench.loaded(one)
    assert index(bench) == [("m", 1, "LOADING", "")]
    bench.hello(two)
    bench.loaded(two)
    assert index(bench) == [("m", 1, "READY", "")]
    assert not bench.core.loading


def test_with_gpus_there_is_an_instance_on_each_and_it_is_told_so(make_bench):
    bench = make_bench(gpus=(0, 1))
    bench.load()
    for key in bench.alive:
        bench.hello(key)
    told = [bench.inbox[key][0].args for key in bench.alive]
    assert [args["model_instance_kind"] for args in told] == ["GPU", "GPU"]
    assert [args["model_instance_device_id"] for args in told] == ["0", "1"]


def test_auto_completion_runs_in_a_process_of_its_own_first(make_bench):
    bench = make_bench(auto_complete=True)
    bench.load()
    key = bench.only()
    bench.hello(key)
    load = bench.inbox[key][0]
    assert isinstance(load, Load) and load.mode == "auto_complete"
    bench.loaded(key)
    bench.die(key, 0)
    bench.hello(bench.only())
    assert bench.inbox[bench.only()][0].mode == "serve"
    bench.loaded(bench.only())
    assert index(bench) == [("m", 1, "READY", "")]


def test_the_stub_is_told_the_seven_arguments_of_initialize(make_bench):
    bench = make_bench()
    bench.load()
    bench.hello(bench.only())
    args = bench.inbox[bench.only()][0].args
    assert {key: args[key] for key in args if key != "model_config"} == {
        "model_instance_kind": "CPU",
        "model_instance_name": "m_0",
        "model_instance_device_id": "0",
        "model_repository": "/repo/m",
        "model_version": "1",
        "model_name": "m",
    }


def test_a_python_based_backend_runs_the_model_from_its_own_file(make_bench):
    backend = Backend("mine", "/backends/mine/model.py", settings={"threads": "2"})
    bench = make_bench(auto_complete=True, backends={"mine": backend})
    bench.load(backend="mine")
    for mode in ("auto_complete", "serve"):
        key = bench.only()
        bench.hello(key)
        load = bench.inbox[key][0]
        assert (load.mode, load.model_file, load.version_directory) == (mode, backend.model_file, "/repo/m/1")
        assert json.loads(load.args["model_config"])["parameters"] == {"threads": {"string_value": "2"}}
        bench.loaded(key)
        if mode == "auto_complete":
            bench.die(key, 0)
    shown = json.loads(bench.core.registry.signature("m", 1).config_json)
    assert shown["runtime"] == "model.py"
    assert shown["parameters"] == {}


def test_a_failing_initialize_makes_the_model_unavailable_with_its_reason(make_bench):
    bench = make_bench()
    bench.load(instances=2)
    failing, other = bench.alive
    bench.hello(failing)
    bench.tell(StubSaid(failing, Failed(FAILED, 1, "ValueError: no weights"), ()))
    assert index(bench) == [("m", 1, "UNAVAILABLE", "Internal: ValueError: no weights")]
    assert set(bench.killed) == {failing, other}
    bench.die(failing, 1)
    bench.die(other)
    assert bench.alive == {} and bench.core.processes == 0 and not bench.core.loading
    assert bench.error(bench.submit()) == "Request for unknown model: 'm' has no available versions"


def test_a_death_while_loading_is_an_unhealthy_stub(make_bench):
    bench = make_bench()
    bench.load()
    bench.die(bench.only(), 3)
    assert index(bench) == [("m", 1, "UNAVAILABLE", "Internal: Stub process 'm_0' is not healthy.")]


def test_a_death_while_auto_completing_fails_the_load_at_once(make_bench):
    bench = make_bench(auto_complete=True)
    bench.load()
    bench.die(bench.only(), 3)
    assert index(bench)[0][2] == "UNAVAILABLE"
    assert not bench.core.loading


def test_versions_of_a_model_serve_together_or_not_at_all(make_bench):
    bench = make_bench()
    bench.load(versions=(1, 2))
    one, two = bench.alive
    bench.hello(one)
    bench.loaded(one)
    bench.die(two, 1)
    assert [row[2:] for row in index(bench)] == [
        ("UNAVAILABLE", "unloaded"),
        ("UNAVAILABLE", "Internal: Stub process 'm_0' is not healthy."),
    ]
    assert list(bench.recorder) == []


def test_no_more_versions_load_at_a_time_than_allowed(make_bench):
    bench = make_bench(load_concurrency=2)
    for name in "abc":
        bench.load(name)
    assert len(bench.alive) == 2
    bench.hello(next(iter(bench.alive)))
    bench.loaded(next(iter(bench.alive)))
    assert len(bench.alive) == 3


def test_a_stub_of_another_protocol_version_is_killed(make_bench):
    bench = make_bench()
    bench.load()
    bench.tell(StubSaid(bench.only(), Hello(HELLO, VERSION + 1, 1), ()))
    assert bench.killed == [bench.only()]


def test_a_stub_that_cannot_read_the_nonce_gets_its_tensors_inline(make_bench):
    bench = make_bench()
    bench.load()
    key = bench.only()
    bench.hello(key)
    bench.tell(StubSaid(key, Ready(READY, b"", ""), ()))
    assert [action.event for action in bench.said if getattr(action, "level", "") == "warning"] == [
        "tensors travel inline"
    ]
