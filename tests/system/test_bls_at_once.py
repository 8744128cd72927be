"""Many calls to other models at once: awaited, from threads, from forked processes; and the memory of their tensors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.system.bls_models import MODELS, Cases, drive
from tests.system.conftest import MiB, Server, eventually, together

IN_A_PROCESS = """
def called_in_a_process(self, number):
    responses = self.ask("repeat", [self.tensor(2)]).exec(decoupled=True)
    return self.data(self.ask("double", [self.tensor(number)]).exec()) + [len(list(responses))]
def sum_in_a_process(self):
    return float(given.exec().output_tensors()[0].as_numpy().sum())
"""
case = Cases(IN_A_PROCESS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with case.serving(tmp_path_factory.mktemp("bls"), *MODELS) as server:
        yield server


# --- at the same time ---------------------------------------------------------------------------------------------

GATHER = case("""
import asyncio
async def gather():
    asks = [self.ask("slow", [self.tensor(0.3, number)]).async_exec() for number in range(32)]
    return [self.data(response) for response in await asyncio.gather(*asks)]
begin = time.monotonic()
return [asyncio.run(gather()), time.monotonic() - begin]
""")


def test_32_calls_are_awaited_at_once(server: Server) -> None:
    numbers, seconds = drive(server, GATHER)
    assert [number[0][1] for number in numbers] == list(range(32))
    assert seconds < 3.0  # one after the other they take ten


ASYNC_STREAM = case("""
import asyncio
async def blocking():
    responses = await self.ask("repeat", [self.tensor(2)]).async_exec(decoupled=True)
    return [self.data(response) for response in responses]
async def awaiting():
    responses = await self.ask("repeat", [self.tensor(2)]).async_exec(decoupled=True)
    return [self.data(response) async for response in responses]
async def both():
    return await asyncio.gather(blocking(), awaiting())
return asyncio.run(both())
""")


def test_responses_to_an_awaited_call_come_blocking_and_awaited(server: Server) -> None:
    items = [[[0.0]], [[1.0]], []]
    assert drive(server, ASYNC_STREAM) == [items, items]


ASYNC_CANCEL = case("""
import asyncio
async def give_up():
    try:
        await asyncio.wait_for(self.ask("endless", [self.tensor(1)]).async_exec(), 0.2)
    except asyncio.TimeoutError:
        return "given up"
given_up = asyncio.run(give_up())
return [given_up, self.data(self.ask("endless", [self.tensor(0)]).exec())]
""")


def test_a_call_whose_task_is_cancelled_is_cancelled(server: Server) -> None:
    """The model called has one instance, which is_cancelled sets free."""
    assert drive(server, ASYNC_CANCEL) == ["given up", [[0.0]]]


IN_THREADS = case("""
import concurrent.futures
with concurrent.futures.ThreadPoolExecutor(16) as pool:
    jobs = [pool.submit(self.ask("slow", [self.tensor(0.1, number)]).exec) for number in range(64)]
    return [job.result().output_tensors()[0].as_numpy()[1].item() for job in jobs]
""")


def test_threads_of_a_model_call_at_once(server: Server) -> None:
    assert drive(server, IN_THREADS) == list(range(64))


def test_models_whose_threads_call_serve_parallel_requests(server: Server) -> None:
    """Calls of a model's own thread blocked for ever where answers were only read inside execute."""
    jobs = [lambda number=number: server.post("inside_threads", [number]).data for number in range(16)]
    assert together(16, jobs) == [[number * 2.0] for number in range(16)]


FORKED = case("""
import multiprocessing
with multiprocessing.get_context("fork").Pool(4) as pool:
    small = pool.map(self.called_in_a_process, range(8))
large = np.arange(1 << 20, dtype=np.float32)
globals()["given"] = self.ask("double", [pb_utils.Tensor("IN", large)])
with multiprocessing.get_context("fork").Pool(1) as pool:
    total = pool.apply(self.sum_in_a_process)
return [small, total == float((large * 2).sum()), self.data(self.ask("double", [self.tensor(1)]).exec())]
""")


def test_processes_that_a_model_forks_call_too(server: Server) -> None:
    small, total, after = drive(server, FORKED)
    assert small == [[[number * 2.0], 3] for number in range(8)]
    assert (total, after) == (True, [[2.0]])


# --- memory -------------------------------------------------------------------------------------------------------

OUTLIVING = case("""
kept = []
for number in range(5):
    array = np.full(300_000, number, np.float32)
    kept.append(self.ask("ident", [pb_utils.Tensor("IN", array)]).exec().output_tensors()[0])
for number in range(5):
    self.ask("ident", [pb_utils.Tensor("IN", np.full(300_000, 9, np.float32))]).exec()
arrays = [tensor.as_numpy() for tensor in kept]
del kept
self.ask("ident", [pb_utils.Tensor("IN", np.full(300_000, 9, np.float32))]).exec()
return [[float(array.min()), float(array.max())] for array in arrays]
""")


def test_outputs_live_as_long_as_they_are_held(server: Server) -> None:
    assert drive(server, OUTLIVING) == [[number, number] for number in range(5)]


UNTOUCHED = case("""
given = request.inputs()[0]
first = self.ask("in_place", [given]).exec().output_tensors()[0]
second = self.ask("in_place", [given]).exec().output_tensors()[0]
sums = []
for count in (3, 100_000, 5 << 20):
    start = self.ask("ident", [pb_utils.Tensor("IN", np.zeros(count, np.float32))]).exec().output_tensors()[0]
    start = pb_utils.Tensor("IN", start.as_numpy()) if count == 3 else start
    renamed = self.ask("rename", [start]).exec().output_tensors()[0] if count != 3 else start
    answers = [self.ask("in_place", [renamed]).exec().output_tensors()[0].as_numpy() for _ in range(2)]
    sums.append([float(answer.mean()) for answer in answers] + [float(renamed.as_numpy().sum())])
return [[t.as_numpy()[0].item() - given.as_numpy()[0].item() for t in (first, second)], sums]
""")


def test_a_model_that_writes_to_its_input_does_not_write_to_its_callers(server: Server) -> None:
    assert drive(server, UNTOUCHED) == [[1.0, 1.0], [[1.0, 1.0, 0.0]] * 3]


MEMORY = case("""
array = np.ones(4 << 20, np.float32)
for _ in range(30):
    response = self.ask("double", [pb_utils.Tensor("IN", array)]).exec()
    assert response.output_tensors()[0].as_numpy()[-1] == 2
responses = self.ask("ident", [pb_utils.Tensor("IN", array)]).exec(decoupled=True)
del responses
return "done"
""")


LATE = case("""
import threading
done = os.path.join(pb_utils.get_model_dir(), "late")
def late():
    time.sleep(3)  # the instance has looked for unused memory by then
    self.ask("double", [pb_utils.Tensor("IN", np.ones(4 << 20, np.float32))]).exec()
    open(done, "w").close()
threading.Thread(target=late).start()
return done
""")


def test_memory_is_given_back_while_and_after_large_tensors_are_exchanged(tmp_path: Path) -> None:
    with case.serving(tmp_path, "double", "ident", "way_through") as server:
        before = server.shm_bytes()
        for number in range(3):
            assert drive(server, MEMORY) == "done"
            array = np.full(4 * MiB + number, number, np.float32)
            assert (server.post_binary("way_through", array).array == array).all()
        assert server.shm_bytes() < 150 * MiB  # of a hundred tensors of 16 MiB
        done = Path(drive(server, LATE))
        eventually(done.exists)
        eventually(lambda: server.shm_bytes() <= before, 40.0, "all is as it was")
