"""Requests that fail must not cost memory, descriptors or the count of what is pending."""

from __future__ import annotations

import numpy as np
import pytest

from tests.system.conftest import Answer, MiB, Repository, Server, Start, eventually, together

pytestmark = pytest.mark.usefixtures("all_in_shared_memory")

REQUESTS = 400  # of 40 kB: what stayed of each would be 16 MB

FAILURES = {  # what execute does, and what the client is told
    "raises": ('raise pb_utils.TritonModelException("so it is")', "so it is"),
    "returns errors": (
        'return [pb_utils.InferenceResponse(error=pb_utils.TritonError("so it is")) for _ in requests]',
        "so it is",
    ),
    "returns no list": ('return "text"', "Expected a list in the execute return, found type '<class 'str'>'."),
    "returns too few": ("return []", "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0"),
    "returns something else": ("return [3]", "Expected an 'InferenceResponse' object in the execute function return"),
    "returns a text that has no bytes": ("return [respond(requests[0], np.array([chr(0xD800)], dtype=object))]", "OUT"),
}


def fail_often(server: Server, count: int) -> list[Answer]:
    array = np.ones(10_000, np.float32)
    return together(4, [lambda: server.post_binary("boom", array)] * count)


@pytest.mark.parametrize("way", FAILURES)
def test_failed_requests_leave_no_memory_behind(repository: Repository, start: Start, way: str) -> None:
    """Each exception of execute left its tensors in shared memory, and the file stayed after the server's exit."""
    code, told = FAILURES[way]
    repository.add("boom", f"def execute(self, requests):\n    {code}")
    server = start()

    fail_often(server, REQUESTS // 4)
    middle, descriptors = server.shm_bytes(), server.descriptors()
    answers = fail_often(server, REQUESTS)
    assert server.shm_bytes() - middle <= MiB
    eventually(lambda: server.descriptors() <= descriptors + 2)  # a connection may be closing still
    assert {answer.status for answer in answers} == {500}
    assert all(told in answer.error for answer in answers)
    assert server.pending("boom") == 0
    assert server.failures("boom") == {"BACKEND": REQUESTS * 5 // 4}
    assert server.terminate() == 0
    assert not server.shm()


def test_a_failing_request_of_many_leaves_no_memory_of_its_neighbours(repository: Repository, start: Start) -> None:
    code = """
    def execute(self, requests):
        if values(requests[0])[0] == 13:
            raise ValueError("no")
        return [respond(request, values(request)) for request in requests]
    """
    repository.add("boom", code)
    server = start()
    good, bad = np.full(10_000, 1, np.float32), np.full(10_000, 13, np.float32)

    def alternately(count: int) -> list[int]:
        return [a.status for a in together(4, [lambda a=a: server.post_binary("boom", a) for a in [good, bad] * count])]  # type: ignore[misc]

    alternately(100)
    middle = server.shm_bytes()
    assert alternately(400) == [200, 500] * 400
    assert server.shm_bytes() - middle <= MiB


def test_refused_requests_leave_no_memory_behind(repository: Repository, start: Start) -> None:
    repository.add("ident")
    server = start()
    array = np.ones((100, 100), np.float32)  # one dimension too many

    def refuse(count: int) -> list[Answer]:
        return together(4, [lambda: server.post_binary("ident", array)] * count)

    refuse(100)
    middle = server.shm_bytes()
    answers = refuse(500)
    assert server.shm_bytes() - middle <= MiB
    assert {answer.status for answer in answers} == {400}
    assert all("unexpected shape for input 'IN'" in answer.error for answer in answers)


def test_a_model_that_dies_leaves_no_memory_behind(repository: Repository, start: Start) -> None:
    """Inputs of the request inside it and outputs that were not yet read are given back."""
    code = """
    def execute(self, requests):
        if values(requests[0])[0] == 13:
            os._exit(1)
        return [respond(request, values(request)) for request in requests]
    """
    repository.add("die", code)
    server = start()
    array = np.full(MiB, 13, np.float32)
    array[0] = 1
    assert server.post_binary("die", array).array[1] == 13
    array[0] = 13
    for _ in range(3):
        assert server.post_binary("die", array).status == 500
    eventually(lambda: server.ready("die"))
    assert server.shm_bytes() < 16 * MiB  # of the gateway: kept for the next one of that size
    array[0] = 1
    assert server.post_binary("die", array).array[1] == 13


def test_memory_of_large_tensors_is_given_back_after_a_while(repository: Repository, start: Start) -> None:
    repository.add("ident")
    server = start()
    assert len(server.post_binary("ident", np.ones(16 * MiB, np.float32)).array) == 16 * MiB
    assert server.shm_bytes() >= 128 * MiB
    eventually(lambda: server.shm_bytes() < 8 * MiB, 30, "segments given back")
