"""The stack of compose.yaml as its users run it: ``make system-compose``. Needs Docker; takes some minutes.

The images are built unless TENSORBUS_IMAGE names one. Grafana is left out: its dashboard is asked of Prometheus here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http

from tests.deploy.stack import SLOW, Load, Stack, ask, eventually, make_repository, why_not
from tests.deploy.test_monitoring import dashboard_expressions

reason = why_not()
pytestmark = [pytest.mark.timeout(900), pytest.mark.skipif(bool(reason), reason=reason)]

# Panels that have nothing to show while nothing goes wrong, or no model has what they show.
EMPTY = {"Why batches were closed"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    for parent in list(path.parents)[:2]:
        parent.chmod(0o755)
    made = make_repository(path / "plain")
    make_repository(path / "environment", env_double="import simplejson, sys\nassert sys.version_info[:2] == (3, 12)\n")
    return made


def running(models: Path, project: str, *overrides: str, **variables: str) -> Iterator[Stack]:
    stack = Stack(project, models, *overrides, **variables)
    try:
        if "TENSORBUS_IMAGE" not in os.environ:
            stack.compose("build", "stub", *(["stub-environment"] if variables else []), timeout_s=800)
        stack.up()
        yield stack
        wrong = [line for line in stack.logs().splitlines() if line.startswith("E") or "Traceback" in line]
        assert not wrong, "\n".join(wrong[:20])
    except BaseException:
        print(stack.logs()[-20000:])
        raise
    finally:
        stack.down()


@pytest.fixture(scope="class")
def shared(models: Path) -> Iterator[Stack]:
    yield from running(models, "tensorbus-shm")


@pytest.fixture(scope="class")
def apart(models: Path) -> Iterator[Stack]:
    yield from running(models, "tensorbus-frames", "compose.frames.yaml")


@pytest.fixture(scope="class")
def balanced(models: Path) -> Iterator[Stack]:
    yield from running(models, "tensorbus-gateways", "compose.gateways.yaml")


@pytest.fixture(scope="class")
def with_an_environment(models: Path) -> Iterator[Stack]:
    variables = {
        "TENSORBUS_STUB_MODELS": "double",
        "TENSORBUS_ENVIRONMENT_MODELS": "env_*",
        "TENSORBUS_ENVIRONMENT_PYTHON": "3.12",
        "TENSORBUS_ENVIRONMENT_REQUIREMENTS": "simplejson",
    }
    repository = models.with_name("environment")
    yield from running(repository, "tensorbus-environment", "compose.environment.yaml", **variables)


def answers_large_tensors(stack: Stack) -> None:
    random = np.random.default_rng(1)
    for module, url in ((http, stack.http), (grpc, stack.grpc)):
        with module.InferenceServerClient(url) as client:
            for _ in range(20):
                assert ask(module, client, random.standard_normal(1_000_000).astype(np.float32))[0] == ""


class TestWithSharedMemory:
    def test_large_tensors_go_by_shared_memory(self, shared: Stack) -> None:
        answers_large_tensors(shared)
        shared.await_value('sum(tensorbus_gateway_requests_total{path="shm"})', 40)
        assert shared.value('sum(tensorbus_gateway_requests_total{path="frames"})') == 0

    def test_stub_hosts_come_and_go_under_load_and_every_request_is_answered_and_counted(self, shared: Stack) -> None:
        before = int(shared.value("sum(tensorbus_gateway_requests_total)"))
        shared.await_value("sum(nv_inference_request_success)", before)  # each service is scraped at a time of its own
        load = Load(shared)
        try:
            load.await_more(100)
            assert len(load.hosts) == 1
            shared.up(stub=3)
            eventually(lambda: len(load.hosts) == 3, 60, "answers of three hosts")
            shared.await_value('count(up{job="stub"} == 1)', 3)
            shared.await_value("tensorbus_broker_stub_hosts", 3)
            load.await_more(500)
            shared.up(stub=1)
            shared.await_value("tensorbus_broker_stub_hosts", 1)
            shared.await_value('count(up{job="stub"})', 1)
            load.await_more(200)
        finally:
            load.stop()
        assert load.failures == []
        shared.await_value("sum(nv_inference_request_success)", before + load.sent)
        shared.await_value("sum(tensorbus_gateway_requests_total)", before + load.sent)
        assert shared.value("sum(nv_inference_request_failure)") == 0

    def test_the_dashboard_has_something_to_show(self, shared: Stack) -> None:
        empty = {title for title, expression in dashboard_expressions() if not shared.query(expression)}
        assert empty == EMPTY

    def test_no_alert_fires(self, shared: Stack) -> None:
        assert shared.query('ALERTS{alertstate="firing"}') == []

    def test_a_stub_host_that_is_killed_takes_along_what_it_had_in_hand_and_no_more(self, shared: Stack) -> None:
        shared.up(stub=2)
        load = Load(shared)
        try:
            eventually(lambda: len(load.hosts) == 2, 60, "answers of both hosts")
            shared.kill("stub")
            load.await_more(300)
        finally:
            load.stop()
        assert all("was lost, and the request with it" in failure for failure in load.failures), load.failures
        assert len(load.failures) <= len(load.threads)
        shared.up()

    def test_a_broker_that_is_killed_and_comes_back_finds_its_instances(self, shared: Stack) -> None:
        load = Load(shared)
        try:
            load.await_more(100)
            places = set(load.places)
            shared.compose("kill", "broker")
            shared.up()
            load.failures.clear()
            load.places.clear()
            load.await_more(200)
        finally:
            load.stop()
        assert load.failures == []
        assert set(load.places) <= places  # no new process

    def test_when_the_stack_ends_it_answers_what_it_has(self, shared: Stack) -> None:
        with http.InferenceServerClient(shared.http, network_timeout=60) as client, ThreadPoolExecutor(1) as pool:
            answer = pool.submit(ask, http, client, np.array([SLOW], np.float32))
            shared.await_value("tensorbus_gateway_pending_requests", 1, timeout_s=9)
            shared.compose("stop")
            assert answer.result(60)[0] == ""


class TestWithoutSharedMemory:
    def test_large_tensors_go_in_frames(self, apart: Stack) -> None:
        answers_large_tensors(apart)
        apart.await_value('sum(tensorbus_gateway_requests_total{path="frames"})', 40)
        assert apart.value('sum(tensorbus_gateway_requests_total{path="shm"})') == 0

    def test_stub_hosts_come_and_go_under_load(self, apart: Stack) -> None:
        load = Load(apart)
        try:
            apart.up(stub=2)
            eventually(lambda: len(load.hosts) == 2, 60, "answers of two hosts")
            apart.up(stub=1)
            load.await_more(200)
        finally:
            load.stop()
        assert load.failures == []


class TestWithMoreGateways:
    def test_gateways_come_and_go_under_load(self, balanced: Stack) -> None:
        load = Load(balanced)
        try:
            load.await_more(50)
            balanced.up(gateway=3)
            balanced.await_value("tensorbus_broker_gateways", 3)
            balanced.await_value("count(tensorbus_gateway_requests_total > 0)", 3)
            balanced.up(gateway=1)
            balanced.await_value("tensorbus_broker_gateways", 1)
            load.await_more(200)
        finally:
            load.stop()
        assert load.failures == []
        balanced.await_value("sum(nv_inference_request_success)", load.sent)


class TestWithAnEnvironment:
    def test_each_model_runs_on_the_hosts_that_are_for_it(self, with_an_environment: Stack) -> None:
        stack = with_an_environment
        with grpc.InferenceServerClient(stack.grpc) as client:
            eventually(lambda: client.is_server_ready(), 60, "every model is ready")
            answers = {model: ask(grpc, client, np.ones(9, np.float32), model) for model in ("double", "env_double")}
        assert [problem for problem, _ in answers.values()] == ["", ""]
        hosts = {model: where.partition("/")[0] for model, (_, where) in answers.items()}
        containers = {name: stack.compose("ps", "--quiet", name).strip() for name in ("stub", "stub-environment")}
        assert containers["stub"].startswith(hosts["double"])
        assert containers["stub-environment"].startswith(hosts["env_double"])
        stack.await_value('count(up{job="stub"} == 1)', 2)
