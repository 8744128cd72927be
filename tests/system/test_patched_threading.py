"""Models that have gevent patch the standard library: the stub's own threads and locks stay real ones."""

from __future__ import annotations

import pytest

from tests.system.conftest import CONFIG, Repository, Start

# The standard library is patched as some HTTP clients do it when they are imported.
CODE = """
def initialize(self, args):
    from gevent import monkey
    monkey.patch_all()

def execute(self, requests):
    import gevent
    gevent.sleep(0.01)
    answers = []
    for request in requests:
        call = pb_utils.InferenceRequest(
            model_name="ident", requested_output_names=["OUT"], inputs=[pb_utils.Tensor("IN", values(request) + 1)]
        )
        answers.append(pb_utils.InferenceResponse(call.exec().output_tensors()))
    return answers
"""


def test_a_model_that_patches_threading_is_served_and_may_call_others(repository: Repository, start: Start) -> None:
    pytest.importorskip("gevent")
    repository.add("ident")
    repository.add("patched", CODE, config=CONFIG % 2)
    server = start()
    assert [server.post("patched", [float(number)]).data for number in range(5)] == [[n + 1.0] for n in range(5)]
