"""What clients ask of a gateway whose broker is another process, beside plain inference."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.conftest import Repository, Server, eventually
from tests.system.grpc_stream import DECOUPLED, streaming
from tests.system.scaled_stack import ready, scaled_stack

REPEAT = """
def execute(self, requests):
    for request in requests:
        sender = request.get_response_sender()
        for value in values(request):
            sender.send(respond(request, np.array([value], np.float32)))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Server]:
    models = Repository(tmp_path / "models")
    models.path.mkdir()
    models.add("identity")
    models.add("repeat", REPEAT, config=DECOUPLED % 1)
    with scaled_stack(models, tmp_path) as stack:
        stack.broker("--model-control-mode=explicit", "--load-model=identity", "--load-model=repeat")
        stack.stub_host()
        yield ready(ready(stack.gateway(), "identity"), "repeat")


def test_streams_statistics_the_index_and_loads_go_through_the_broker(gateway: Server) -> None:
    with streaming(gateway) as stream:
        stream.send("repeat", [1, 2, 3])
        answers = stream.until_final()
    assert [one.data for one in answers] == [[1], [2], [3], None]
    assert gateway.post("identity", [7], outputs=[{"name": "OUT", "parameters": {"classification": 1}}]).status == 200
    assert eventually(lambda: gateway.statistics("identity")["success"]["count"] == 1)
    assert gateway.index()["repeat:1"]["state"] == "READY"
    assert gateway.call("POST", "/v2/repository/models/identity/unload").status == 200
    assert gateway.post("identity", [7]).status in (404, 503)
    assert gateway.call("POST", "/v2/repository/models/identity/load").status == 200
    assert gateway.post("identity", [8]).data == [8], "whoever has loaded a model finds it"
    refused = gateway.call("POST", "/v2/repository/models/nope/load")
    assert (refused.status, refused.error) == (500, "failed to load 'nope', failed to poll from model repository")
