"""Models that call other models, and the driver: a model whose ``execute`` runs the cases of a test file."""

from __future__ import annotations

import contextlib
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.system.conftest import IDENTITY, Repository, Server, serving

TEXT_OUT = """
max_batch_size: 0
input [{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }]
output [{ name: "OUT" data_type: TYPE_STRING dims: [ 1 ] }]
instance_group [{ kind: KIND_CPU count: %d }]
"""
DECOUPLED = """
max_batch_size: 0
input [{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }]
model_transaction_policy { decoupled: true }
"""
STRINGS = """
max_batch_size: 0
input [{ name: "IN" data_type: TYPE_STRING dims: [ -1 ] }]
output [{ name: "OUT" data_type: TYPE_STRING dims: [ -1 ] }]
"""
TWO_OUTPUTS = """
max_batch_size: 0
input [{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "TWICE" data_type: TYPE_FP32 dims: [ -1 ] }]
"""
RENAMING = """
max_batch_size: 0
input [{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }]
output [{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }]
"""
QUEUE = """
max_batch_size: 1
input [{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }]
dynamic_batching { default_queue_policy { default_timeout_microseconds: 20000000 allow_timeout_override: true } }
"""
DOUBLE = """
def execute(self, requests):
    return [respond(request, values(request) * 2) for request in requests]
"""
TWO = """
def execute(self, requests):
    return [self.answer(values(request)) for request in requests]
def answer(self, array):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array), pb_utils.Tensor("TWICE", array * 2)])
"""
IN_PLACE = """
def execute(self, requests):
    return [self.answer(request, values(request)) for request in requests]
def answer(self, request, array):
    array += 1
    return respond(request, array)
"""
SLOW = """
def execute(self, requests):
    time.sleep(float(values(requests[0]).flat[0]))
    return [respond(request, values(request)) for request in requests]
"""
FAILING = """
def execute(self, requests):
    what = values(requests[0])[0]
    if what == 1:
        raise ValueError("no such luck")
    return [pb_utils.InferenceResponse(error=pb_utils.TritonError("not here", pb_utils.TritonError.NOT_FOUND))]
"""
DYING = """
def execute(self, requests):
    os._exit(3)
"""
ABOUT = """
def execute(self, requests):
    return [self.answer(request) for request in requests]
def answer(self, request):
    about = [request.request_id(), request.correlation_id(), request.flags(), request.timeout(),
             json.loads(request.parameters()), sorted(request.requested_output_names())]
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([json.dumps(about)], object))],
                                      parameters={"a": 1})
"""
# As many responses as IN says, each with its number; the final flag comes alone, or with the last one if IN has two
# elements.
REPEAT = """
def execute(self, requests):
    for request in requests:
        sender, given = request.get_response_sender(), values(request)
        for number in range(int(given[0])):
            last = len(given) > 1 and number == given[0] - 1
            response = respond(request, np.array([number], np.float32))
            sender.send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0)
        if len(given) == 1 or given[0] == 0:
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
ENDLESS = """
def execute(self, requests):
    return [self.answer(request, values(request)) for request in requests]
def answer(self, request, array):
    deadline = time.monotonic() + 30
    while array[0] and not request.is_cancelled() and time.monotonic() < deadline:
        time.sleep(0.005)
    return respond(request, array)
"""
RENAME = """
def execute(self, requests):
    return [self.answer(pb_utils.get_input_tensor_by_name(request, "OUT")) for request in requests]
def answer(self, tensor):
    response = self.ask("ident", [pb_utils.Tensor("IN", tensor.as_numpy())]).exec()
    return pb_utils.InferenceResponse([pb_utils.Tensor("IN", response.output_tensors()[0].as_numpy())])
"""
UNTIL_CANCELLED = """
def execute(self, requests):
    for request in requests:
        sender = request.get_response_sender()
        sender.send(respond(request, values(request)))
        deadline = time.monotonic() + 20
        while not sender.is_cancelled() and time.monotonic() < deadline:
            time.sleep(0.005)
        text = "cancelled" if sender.is_cancelled() else "not cancelled"
        error = pb_utils.TritonError(text, pb_utils.TritonError.CANCELLED)
        sender.send(pb_utils.InferenceResponse(error=error), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
MUTUAL = """
def execute(self, requests):
    return [self.ask("%s", request.inputs()).exec() for request in requests]
"""
RECURSIVE = """
def execute(self, requests):
    return [self.answer(request, values(request)) for request in requests]
def answer(self, request, array):
    if array[0] == 0:
        return respond(request, array)
    response = self.ask("recursive", [pb_utils.Tensor("IN", array - 1)]).exec()
    return response if response.has_error() else respond(request, response.output_tensors()[0].as_numpy() + 1)
"""
INSIDE_THREADS = """
def execute(self, requests):
    return [self.answer(request) for request in requests]
def answer(self, request):
    import threading
    results = []
    ask = self.ask("double", request.inputs())
    thread = threading.Thread(target=lambda: results.append(ask.exec()))
    thread.start()
    thread.join(20)
    return results[0]
"""
WAY_THROUGH = """
def execute(self, requests):
    return [pb_utils.InferenceResponse(self.ask("ident", request.inputs()).exec().output_tensors())
            for request in requests]
"""
ASK = """
def ask(self, model, inputs, **fields):
    fields.setdefault("requested_output_names", [])
    return pb_utils.InferenceRequest(model_name=model, inputs=inputs, **fields)
"""
DRIVER = """
def tensor(self, *numbers):
    return pb_utils.Tensor("IN", np.array(numbers, np.float32))
def data(self, response):
    if response.has_error():
        return response.error().message()
    return [tensor.as_numpy().tolist() for tensor in response.output_tensors()]
def execute(self, requests):
    return [self.answer(request) for request in requests]
def answer(self, request):
    result = getattr(self, "case_%d" % values(request)[0])(request)
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([json.dumps(result)], object))])
"""


FORWARD = """
def execute(self, requests):
    for request in requests:
        sender = request.get_response_sender()
        for response in self.ask("repeat", request.inputs()).exec(decoupled=True):
            if response.output_tensors():
                sender.send(pb_utils.InferenceResponse(response.output_tensors()))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
MODELS: dict[str, dict[str, Any]] = {
    "ident": {"code": IDENTITY, "instances": 2},
    "double": {"code": DOUBLE, "instances": 2},
    "in_place": {"code": IN_PLACE},
    "two": {"code": TWO, "config": TWO_OUTPUTS},
    "strings": {"code": IDENTITY, "config": STRINGS},
    "about": {"code": ABOUT, "config": TEXT_OUT % 1},
    "slow": {"code": SLOW, "instances": 32},
    "queue": {"code": SLOW, "config": QUEUE},
    "failing": {"code": FAILING},
    "dying": {"code": DYING},
    "repeat": {"code": REPEAT, "config": DECOUPLED},
    "forward": {"code": FORWARD, "config": DECOUPLED},
    "until_cancelled": {"code": UNTIL_CANCELLED, "config": DECOUPLED},
    "endless": {"code": ENDLESS},
    "rename": {"code": RENAME, "config": RENAMING},
    "one": {"code": MUTUAL % "other"},
    "other": {"code": MUTUAL % "one"},
    "recursive": {"code": RECURSIVE, "instances": 3},
    "inside_threads": {"code": INSIDE_THREADS},
    "way_through": {"code": WAY_THROUGH, "instances": 2},
}


class Cases:
    """Code for the driver, each a few lines of a method whose result comes back by way of JSON."""

    def __init__(self, more: str = "") -> None:
        self._code = [more]

    def __call__(self, code: str) -> int:
        """The number of a new case."""
        method = f"def case_{len(self._code)}(self, request):\n"
        self._code.append(method + textwrap.indent(textwrap.dedent(code), "    "))
        return len(self._code) - 1

    @contextlib.contextmanager
    def serving(self, path: Path, *models: str) -> Iterator[Server]:
        """A server with the driver, which has two instances, and these models; ``path`` is empty."""
        repository = Repository(path / "models")
        repository.path.mkdir()
        for name in models:
            _add(repository, name, **MODELS[name])
        _add(repository, "driver", DRIVER + "\n".join(self._code), config=TEXT_OUT % 2)
        with serving(repository, path) as start:
            yield start()


def drive(server: Server, case: int) -> Any:
    """The result of a case."""
    answer = server.post("driver", [case])
    assert answer.status == 200, answer
    return json.loads(answer.json["outputs"][0]["data"][0])


def _add(repository: Repository, name: str, code: str, **options: Any) -> None:
    file = repository.add(name, ASK + code, **options) / "model.py"
    file.write_text("import json\n" + file.read_text())
