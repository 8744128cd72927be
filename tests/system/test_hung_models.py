"""Models that hang: with a limit they are aborted, the log tells where they hung, and the next request is served."""

from __future__ import annotations

from tests.system.conftest import CONFIG, eventually

LIMIT = 'parameters { key: "%s" value: { string_value: "1" } }'

CODE = """
def initialize(self, args):
    if "load" in args["model_name"]:
        self.hang()

def execute(self, requests):
    if values(requests[0])[0] < 0:
        self.hang()
    return [respond(request, values(request)) for request in requests]

def hang(self):
    while True:
        time.sleep(0.01)
"""


def test_an_execution_that_hangs_is_told_of_by_client_log_and_metric_and_the_next_one_is_served(start, repository):
    repository.add("m", CODE, config=CONFIG % 1 + LIMIT % "EXECUTE_TIMEOUT_SECONDS")
    server = start()
    text = "execute took longer than the 1 s that EXECUTE_TIMEOUT_SECONDS of model 'm' allows."
    assert server.post("m", [-1.0]).error == text
    assert server.post("m", [1.0]).data == [1.0]
    assert any("in hang" in line and "model.py" in line for line in server.text().splitlines())
    assert server.metric("tensorbus_stub_restarts_total", "m") == 1
    assert eventually(lambda: server.ready("m"))


def test_a_model_that_hangs_while_it_loads_fails_to_load(start, repository):
    repository.add("load", CODE, config=CONFIG % 1 + LIMIT % "LOAD_TIMEOUT_SECONDS")
    repository.add("m", CODE)
    server = start("--exit-on-error=false")
    assert "loading took longer than the 1 s" in server.index()["load:1"]["reason"]
    assert server.post("m", [1.0]).data == [1.0]
