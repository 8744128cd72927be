"""Models of a scaled stack that call each other: on one host, on several, and across memory that is not shared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.system import several_hosts
from tests.system.conftest import CONFIG, Background, Repository, eventually, together
from tests.system.scaled_stack import ScaledStack, Service, ready, scaled_stack
from tests.system.test_scaled_stack import with_its_own_shm

pytestmark = pytest.mark.usefixtures("all_in_shared_memory")

ASK = """
@staticmethod
def ask(model, inputs):
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=["OUT"], inputs=inputs)
"""

CALLER = (
    ASK
    + """
def execute(self, requests):
    answers = []
    for request in requests:
        answer = self.ask("callee", [pb_utils.Tensor("IN", values(request))]).exec()
        if answer.has_error():
            answers.append(pb_utils.InferenceResponse([], error=answer.error()))
        else:
            answers.append(respond(request, pb_utils.get_output_tensor_by_name(answer, "OUT").as_numpy() + 1))
    return answers
"""
)

ASYNC_CALLER = (
    ASK
    + """
async def execute(self, requests):
    import asyncio
    answers = []
    for request in requests:
        calls = [
            self.ask("callee", [pb_utils.Tensor("IN", values(request) * n)]).async_exec()
            for n in range(1, 5)
        ]
        found = await asyncio.gather(*calls)
        answers.append(respond(request, sum(
            pb_utils.get_output_tensor_by_name(one, "OUT").as_numpy() for one in found)))
    return answers
"""
)

# Passes on the very tensors that it was given.
PASSING = (
    ASK
    + """
def execute(self, requests):
    answers = []
    for request in requests:
        answers.append(pb_utils.InferenceResponse(self.ask("callee", request.inputs()).exec().output_tensors()))
    return answers
"""
)

STREAM_CALLER = (
    ASK
    + """
def execute(self, requests):
    answers = []
    for request in requests:
        call = self.ask("stream", [pb_utils.Tensor("IN", values(request))])
        parts = [
            pb_utils.get_output_tensor_by_name(one, "OUT").as_numpy()
            for one in call.exec(decoupled=True) if one.output_tensors()
        ]
        answers.append(respond(request, np.concatenate(parts)))
    return answers
"""
)

# The calls are those of a process that it forks, which has no part in the leases of others.
FORKING_CALLER = (
    ASK
    + """
def in_a_process(self, values):
    call = self.ask("stream", [pb_utils.Tensor("IN", values), pb_utils.Tensor("SIZE", np.array([1 << 20], np.float32))])
    seen = []
    for one in call.exec(decoupled=True):
        assert not one.has_error(), one.error().message()
        for tensor in one.output_tensors():
            seen.append([float(tensor.as_numpy().min()), float(tensor.as_numpy().max())])
    return seen

def execute(self, requests):
    import multiprocessing
    answers = []
    for request in requests:
        with multiprocessing.get_context("fork").Pool(1) as pool:
            seen = pool.apply(self.in_a_process, (values(request),))
        answers.append(respond(request, np.array(seen, np.float32).ravel()))
    return answers
"""
)

STREAM = """
def execute(self, requests):
    for request in requests:
        sender = request.get_response_sender()
        size = pb_utils.get_input_tensor_by_name(request, "SIZE")
        for value in values(request):
            sender.send(respond(request, np.full(1000 if size is None else int(size.as_numpy()[0]), value, np.float32)))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""

WAITING = """
def execute(self, requests):
    for request in requests:
        if values(request)[0] < 0:
            open("{entered}", "w").close()
            wait_for("{go}")
    return [respond(request, values(request) * 2) for request in requests]
"""

DOUBLING = """
def execute(self, requests):
    return [respond(request, values(request) * 2) for request in requests]
"""

SIZE = 'input [{ name: "SIZE" data_type: TYPE_FP32 dims: [ 1 ] optional: true }]\n'
DECOUPLED = CONFIG % 1 + "model_transaction_policy { decoupled: true }\n"


@pytest.fixture
def stack(repository: Repository, tmp_path: Path) -> Iterator[ScaledStack]:
    with scaled_stack(repository, tmp_path) as stack:
        yield stack


def test_calls_under_way_when_the_broker_dies_are_not_taken_for_those_of_the_next(repository, stack, flag):
    """And one to a host that dies fails at once."""
    repository.add("caller", CALLER, 2)
    repository.add("callee", WAITING.format(entered=flag("entered"), go=flag("go")), 2)
    broker = stack.broker()
    stack.stub_host("--model=caller")
    called = stack.stub_host("--model=callee")
    gateway = ready(ready(stack.gateway(), "caller"), "callee")
    caught = Background(1, lambda: gateway.post("caller", [-5]), 1)
    eventually(flag("entered").exists)
    broker.kill()
    stack.broker()
    ready(gateway, "caller")
    for number in range(20):
        assert gateway.post("caller", [number]).data == [2 * number + 1]
    flag("go").touch()
    (answer,) = caught.stop()
    assert answer.status in (500, 503), answer  # the broker that the model had asked has gone
    for number in range(20):
        assert gateway.post("caller", [number]).data == [2 * number + 1]
    assert not broker_faults(stack)
    flag("entered").unlink(), flag("go").unlink()
    caught = Background(1, lambda: gateway.post("caller", [-5]), 1)
    eventually(flag("entered").exists)
    called.kill()
    (answer,) = caught.stop()
    assert (answer.status, "the stub host of instance 'callee_0_" in answer.error) == (503, True), answer


def broker_faults(stack: ScaledStack) -> list[str]:
    return [
        line
        for service in stack.services
        for line in service.text().splitlines()
        if line.startswith("E") and ("Traceback" in line or "protocol" in line)
    ]


KINDS: dict[str, tuple[Callable[..., list[str]] | None, Callable[..., list[str]] | None]] = {
    "all share": (list, list),
    "callers apart": (with_its_own_shm, list),
    "callees apart": (list, with_its_own_shm),
    "both apart": (with_its_own_shm, with_its_own_shm),
}


@pytest.fixture(scope="module", params=KINDS)
def over_hosts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The gateway of a stack whose callers run on one host and the models that they call on another."""
    if several_hosts.why_not() and request.param != "all share":
        pytest.skip(several_hosts.why_not())
    path = tmp_path_factory.mktemp("calls")
    repository = Repository(path / "models")
    repository.path.mkdir()
    repository.add("caller", CALLER, 2)
    repository.add("caller_async", ASYNC_CALLER)
    repository.add("caller_passing", PASSING)
    repository.add("caller_stream", STREAM_CALLER)
    repository.add("callee", DOUBLING)
    repository.add("caller_forking", FORKING_CALLER)
    repository.add("stream", STREAM, config=DECOUPLED + SIZE)
    steps = ("caller_passing", "callee", "caller")
    (repository.path / "ensemble" / "1").mkdir(parents=True)
    names = ["IN", "a", "b", "OUT"]
    (repository.path / "ensemble" / "config.pbtxt").write_text(
        'platform: "ensemble"\ninput [{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }]\n'
        'output [{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "a" data_type: TYPE_FP32 dims: [ -1 ] }]\n'
        "ensemble_scheduling { step ["
        + ", ".join(
            f'{{ model_name: "{model}" model_version: -1 input_map {{ key: "IN" value: "{names[number]}" }} '
            f'output_map {{ key: "OUT" value: "{names[number + 1]}" }} }}'
            for number, model in enumerate(steps)
        )
        + "] }"
    )
    callers, callees = KINDS[request.param]
    with scaled_stack(repository, path) as stack:
        stack.broker()
        stack.stub_host("--model=caller*", place=callers)
        stack.stub_host("--model=callee", "--model=stream", place=callees)
        gateway = stack.gateway()
        for model in (
            "stream",
            "caller",
            "caller_async",
            "caller_passing",
            "caller_stream",
            "caller_forking",
            "ensemble",
        ):
            ready(gateway, model)
        yield gateway
        assert not broker_faults(stack)


@pytest.mark.parametrize("nbytes", [4, 4096, 64 << 10, 1 << 20, 16 << 20])
def test_a_model_calls_one_of_another_host(over_hosts, nbytes):
    array = np.random.default_rng(nbytes).random(nbytes // 4, dtype=np.float32)
    for _ in range(3):
        assert np.array_equal(over_hosts.post_binary("caller", array).array, array * 2 + 1)
        assert np.allclose(over_hosts.post_binary("caller_async", array).array, array * 20)
        assert np.array_equal(over_hosts.post_binary("caller_passing", array).array, array * 2)


def test_many_call_at_once(over_hosts):
    def ask(number: int) -> None:
        array = np.full((1 << 10) * (1 + number % 200), number, np.float32)
        assert np.array_equal(over_hosts.post_binary("caller", array).array, array * 2 + 1)
        assert np.array_equal(over_hosts.post_binary("caller_passing", array).array, array * 2)

    together(8, [lambda number=number: ask(number) for number in range(200)])


def test_a_model_reads_a_stream_of_another_host(over_hosts):
    answer = over_hosts.post_binary("caller_stream", np.arange(50, dtype=np.float32)).array
    assert np.array_equal(answer, np.repeat(np.arange(50, dtype=np.float32), 1000))


def test_a_process_that_a_model_forks_reads_a_stream_of_large_tensors(over_hosts):
    """The memory of each is free as soon as it has been answered; it may be that of the next one by then."""
    numbers = np.arange(1, 97, dtype=np.float32)
    answer = over_hosts.post_binary("caller_forking", numbers)
    assert answer.status == 200, answer
    assert np.array_equal(answer.array, np.repeat(numbers, 2))


@pytest.mark.parametrize("nbytes", [4, 1 << 20, 16 << 20])
def test_the_steps_of_an_ensemble_run_on_several_hosts(over_hosts, nbytes):
    array = np.random.default_rng(nbytes).random(nbytes // 4, dtype=np.float32)
    for _ in range(3):
        answer = over_hosts.post_binary("ensemble", array)
        assert answer.status == 200, answer
        floats = np.frombuffer(answer.body, np.float32, offset=int(answer.headers["inference-header-content-length"]))
        halves = [floats[: len(array)], floats[len(array) :]]
        first, whole = array * 2, array * 2 * 2 * 2 + 1
        assert any(np.array_equal(one, whole) and np.array_equal(other, first) for one, other in (halves, halves[::-1]))


HOLDER = """
def execute(self, requests):
    answers = []
    for request in requests:
        call = pb_utils.InferenceRequest(model_name="callee", requested_output_names=["OUT"], inputs=request.inputs())
        (out,) = call.exec().output_tensors()
        self.kept = [] if values(request)[0] == 0 else [*getattr(self, "kept", []), out]
        answers.append(respond(request, np.ones(1, np.float32)))
    return answers
"""


def test_what_a_model_holds_of_another_is_let_go_of_though_the_broker_was_another_then(repository, stack):
    repository.add("holder", HOLDER)
    repository.add("callee", DOUBLING)
    broker, host = stack.broker(), stack.stub_host()
    gateway = ready(ready(stack.gateway(), "holder"), "callee")
    most = []
    for _ in range(3):
        for _ in range(3):
            assert gateway.post_binary("holder", np.ones(2 << 20, np.float32)).status == 200
        most.append(host.shm_bytes())
        broker.kill()
        broker = stack.broker()
        for model in ("holder", "callee"):
            ready(gateway, model)
            assert gateway.post_binary(model, np.zeros(1, np.float32)).status == 200
    assert most[2] < most[0] + (16 << 20), most
