"""Which environment a model is to run in, and that all its processes run in it."""

from __future__ import annotations

import pytest

from broker.backends import Backend
from broker.events import Prepare, Prepared, StartServing, UnloadModel
from broker.execution_env import ExecutionEnv, wanted
from broker.model import VersionSource
from broker.model_config import ModelConfigMessage, from_message
from protocol.errors import InternalError
from protocol.interpreters import Interpreter

BACKEND = Backend("torchy", "/backends/torchy/model.py", "/backends/torchy/pb_exec_env_model.py.tar.gz")
INTERPRETER = Interpreter("/env/bin/python", "/env", ["/packages"])


def source(path: str = "", requirements: str = "") -> VersionSource:
    parameters = {"EXECUTION_ENV_PATH": {"string_value": path}} if path else {}
    message = ModelConfigMessage(name="m", backend="python", parameters=parameters)
    return VersionSource("m", 1, "/repo/m", from_message(message), requirements=requirements)


def test_a_model_that_asks_for_none_runs_in_the_servers_own():
    assert wanted(source(), None) is None
    assert wanted(source(), Backend("plain", "/backends/plain/model.py")) is None


@pytest.mark.parametrize(
    "named, path",
    [
        ("/envs/py39.tar.gz", "/envs/py39.tar.gz"),
        ("envs/py39", "envs/py39"),
        ("$$TRITON_MODEL_DIRECTORY/py39.tar.gz", "/repo/m/py39.tar.gz"),
        ("$$TRITON_MODEL_DIRECTORY/../py39", "/repo/m/../py39"),
        ("/envs/$$TRITON_MODEL_DIRECTORY", "/envs/$$TRITON_MODEL_DIRECTORY"),
    ],
)
def test_the_model_directory_may_stand_for_itself_at_the_beginning(named, path):
    assert wanted(source(named), None) == ExecutionEnv(path, "EXECUTION_ENV_PATH of model 'm'")


def test_what_the_configuration_names_wins_then_the_requirements_then_the_backends():
    env = wanted(source("/env", "/repo/m/requirements.txt"), BACKEND)
    assert env is not None and env.path == "/env"
    env = wanted(source(requirements="/repo/m/requirements.txt"), BACKEND)
    assert env == ExecutionEnv("/repo/m/requirements.txt", "requirements.txt of model 'm'", is_requirements=True)
    assert wanted(source(), BACKEND) == ExecutionEnv(BACKEND.environment, "environment of backend 'torchy'")


def load(bench, **options) -> Prepare:
    bench.load(parameters={"EXECUTION_ENV_PATH": {"string_value": "/env"}}, **options)
    (asked,) = [action for action in bench.said if isinstance(action, Prepare)]
    return asked


def test_no_process_starts_before_the_environment_is_ready(make_bench):
    bench = make_bench(auto_complete=True)
    asked = load(bench)
    assert asked.env.path == "/env" and not bench.alive
    bench.tell(Prepared(asked.version, INTERPRETER))
    assert len(bench.alive) == 1


def test_completion_instances_and_restarts_all_run_in_it(make_bench):
    bench = make_bench(auto_complete=True)
    asked = load(bench, instances=2)
    bench.tell(Prepared(asked.version, INTERPRETER))
    configuring = bench.only()
    bench.hello(configuring)
    bench.loaded(configuring)
    bench.die(configuring, 0)
    bench.bring_up()
    bench.die(next(iter(bench.alive)))
    assert len(bench.interpreters) == 4 and set(map(id, bench.interpreters.values())) == {id(INTERPRETER)}


def test_without_one_the_model_is_unavailable_with_the_reason(make_bench):
    bench = make_bench()
    asked = load(bench)
    bench.tell(Prepared(asked.version, None, InternalError("no such archive")))
    (row,) = bench.core.registry.index(ready=False)
    assert (row.state, row.reason) == ("UNAVAILABLE", "Internal: no such archive")
    assert not bench.core.loading and not bench.alive


def test_one_that_is_ready_too_late_starts_nothing(make_bench):
    bench = make_bench(explicit_control=True)
    asked = load(bench, versions=(1,))
    bench.tell(StartServing())
    bench.tell(UnloadModel(asked.version.name, False, lambda error: None))
    bench.tell(Prepared(asked.version, INTERPRETER))
    assert not bench.alive
