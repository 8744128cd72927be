"""``async def execute``: one event loop for each instance; in decoupled mode many coroutines at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.system.conftest import CONFIG, Repository, Server, eventually, serving
from tests.system.grpc_stream import DECOUPLED, Answer, streaming

# IN is how many seconds to take.
DEFAULT = """
async def execute(self, requests):
    import asyncio, threading
    wait_s = float(values(requests[0])[0])
    if wait_s < 0:
        raise ValueError("wait_secs cannot be negative")
    if wait_s == 2:
        sys.exit("not from here")
    if wait_s == 3:
        raise KeyboardInterrupt
    assert asyncio.get_running_loop() is not None
    assert threading.current_thread() is not threading.main_thread()
    await asyncio.gather(*[asyncio.sleep(wait_s) for _ in range(3)])
    return [respond(request, values(request)) for request in requests]
"""
CONCURRENT = """
def initialize(self, args):
    self.kept = []

async def execute(self, requests):
    import asyncio
    for request in requests:
        wait_s = float(values(request)[0])
        sender = request.get_response_sender()
        if wait_s < 0:
            raise ValueError("wait_secs cannot be negative")
        if wait_s == 2:
            sys.exit("not from here")
        if wait_s == 3:
            return [3]
        if wait_s == 4:
            sender.send(respond(request, values(request)), 1)
            raise ValueError("after the flag")
        if wait_s == 5:
            return None
        if wait_s == 6:
            self.kept.append(asyncio.create_task(self.exits()))
        await asyncio.sleep(wait_s if wait_s < 1 else 0)
        sender.send(respond(request, values(request)))
        sender.send(flags=1)

async def exits(self):
    sys.exit("a task")
"""
BLS = """
async def execute(self, requests):
    import asyncio
    for request in requests:
        calls = [pb_utils.InferenceRequest(inputs=[pb_utils.Tensor("IN", values(request))], model_name="default",
                 requested_output_names=["OUT"]).async_exec() for _ in range(3)]
        responses = await asyncio.gather(*calls)
        assert not any(response.has_error() for response in responses), responses[0].error().message()
        sender = request.get_response_sender()
        for response in responses:
            sender.send(respond(request, response.output_tensors()[0].as_numpy()))
        sender.send(flags=1)
"""
PREFIX = "Failed to process the request(s) for model '{}_0_0', message: "


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = Repository(tmp_path_factory.mktemp("models"))
    repository.add("default", DEFAULT, instances=2)
    repository.add("concurrent", CONCURRENT, config=DECOUPLED % 1)
    repository.add("bls", BLS, config=DECOUPLED % 1)
    with serving(repository, tmp_path_factory.mktemp("logs")) as start:
        yield start()


def test_in_default_mode_it_is_awaited(server: Server) -> None:
    began = time.monotonic()
    assert server.post("default", [0.25]).data == [0.25]
    assert 0.25 <= time.monotonic() - began < 2
    for _ in range(20):
        assert server.post("default", [0.0]).data == [0.0]


@pytest.mark.parametrize(
    ("value", "text"),
    [(-1, "ValueError: wait_secs cannot be negative"), (2, "SystemExit: not from here"), (3, "KeyboardInterrupt: ")],
)
def test_in_default_mode_what_it_raises_is_the_answer(server: Server, value: float, text: str) -> None:
    answer = server.post("default", [value])
    assert answer.status == 500
    assert PREFIX.format("default").replace("_0_0", "_0_") in answer.error.replace("_0_1", "_0_").replace("_0_0", "_0_")
    assert text in answer.error
    assert "\n\nAt:\n" in answer.error
    assert server.post("default", [0.0]).data == [0.0]


def test_in_decoupled_mode_many_run_at_a_time(server: Server) -> None:
    with streaming(server) as stream:
        began = time.monotonic()
        for number in range(10):
            stream.send("concurrent", [0.5], request_id=str(number))
        answers = [stream.next() for _ in range(20)]
        assert time.monotonic() - began < 3
    assert sorted(answer.id for answer in answers if answer.data) == sorted("0123456789")


def test_a_later_one_may_end_first(server: Server) -> None:
    with streaming(server) as stream:
        stream.send("concurrent", [0.5], request_id="slow")
        stream.send("concurrent", [0.0], request_id="quick")
        assert [stream.next().id for _ in range(4)] == ["quick", "quick", "slow", "slow"]


def test_in_decoupled_mode_what_it_raises_is_told_and_logged(server: Server) -> None:
    with streaming(server) as stream:
        for value, text in ((-1, "ValueError: wait_secs cannot be negative"), (2, "SystemExit: not from here")):
            stream.send("concurrent", [value])
            error = stream.next().error
            assert error.startswith(PREFIX.format("concurrent") + text + "\n\nAt:\n")
            eventually(lambda text=text: server.lines(text))  # type: ignore[misc]


def test_in_decoupled_mode_it_must_return_none(server: Server) -> None:
    with streaming(server) as stream:
        stream.send("concurrent", [3])
        assert stream.next().error.endswith("is using the decoupled mode and the execute function must return None.")


def test_what_it_raises_after_the_flag_is_only_logged(server: Server) -> None:
    with streaming(server) as stream:
        stream.send("concurrent", [4])
        assert stream.next() == Answer([4.0], final=True)
        eventually(lambda: server.lines("ValueError: after the flag"))
        assert stream.is_silent(0.1)


def test_one_that_forgets_the_flag_is_noticed(server: Server) -> None:
    with streaming(server) as stream:
        stream.send("concurrent", [5])
        assert "without sending the final flag" in stream.next().error


def test_a_task_that_exits_does_not_end_the_loop(server: Server) -> None:
    with streaming(server) as stream:
        for value in (6.0, 0.0):
            stream.send("concurrent", [value])
            assert stream.until_final() == [Answer([value]), Answer(None, final=True)]
    assert server.ready("concurrent")


def test_it_calls_other_models(server: Server) -> None:
    with streaming(server) as stream:
        for value in (0.0, 0.25):
            stream.send("bls", [value])
            assert stream.until_final() == [Answer([value])] * 3 + [Answer(None, final=True)]


def test_the_loop_has_stopped_when_finalize_is_called(tmp_path_factory: pytest.TempPathFactory) -> None:
    code = """
    async def execute(self, requests):
        import asyncio
        self.loop = asyncio.get_running_loop()
        return [respond(request, values(request)) for request in requests]
    def finalize(self):
        pb_utils.Logger.log_info("the loop runs: {}".format(self.loop.is_running()))
    """
    repository = Repository(tmp_path_factory.mktemp("models"))
    repository.add("m", code, config=CONFIG % 1)
    with serving(repository, tmp_path_factory.mktemp("logs")) as start:
        server = start()
        assert server.post("m", [1.0]).data == [1.0]
        assert server.terminate() == 0
        assert server.lines("the loop runs: False")
