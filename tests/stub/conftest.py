"""A model file loaded into a Session in this process, with memory in place of sockets and segments."""

from __future__ import annotations

import functools
import itertools
import json
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple

import numpy as np
import pytest
import zmq
from _tensorbus_app.stub import bytes_tensor, event_loop, numpy_types, session, user_model
from _tensorbus_app.stub.shared import messages

from tests.stub.bare_broker import BareBroker, write_model

Given = Tuple[str, Tuple[int, ...], bytes]  # datatype, shape, binary form


class Memory:
    """Plays both sides' shared memory: places by number, writable."""

    def __init__(self) -> None:
        self.blocks: List[bytearray] = []
        self.placed: List[int] = []  # number of tensors of each response

    def put(self, data: bytes) -> int:
        self.blocks.append(bytearray(bytes(data)))
        return len(self.blocks) - 1

    def view(self, tensor: messages.TensorRef) -> memoryview:
        assert isinstance(tensor.place, int)
        return memoryview(self.blocks[tensor.place])

    def place(self, tensors: Any, frames: List[bytes], inline: bool) -> Tuple[List[messages.TensorRef], int]:
        self.placed.append(len(tensors))
        return [messages.TensorRef(*tensor[:3], self.put(tensor[3])) for tensor in tensors], len(self.placed)

    def lend_nothing(self) -> int:
        return 1


class Port:
    """Plays the bus: keeps what is sent; ``cancel`` is what the broker says at the next glance."""

    is_ours = True

    def __init__(self) -> None:
        self.sent: List[messages.Response] = []
        self.cancel: List[int] = []
        self.on_cancel: Callable[[messages.Cancel], None]
        self._nudged = threading.Event()

    def send(self, message: messages.Results, frames: Any = ()) -> None:
        self.sent += message.responses

    def wait(self, done: Callable[[], Any]) -> bool:
        while not done():
            assert self._nudged.wait(10)
            self._nudged.clear()
        return True

    def glance(self) -> None:
        if self.cancel:
            self.on_cancel(messages.Cancel(messages.CANCEL, self.cancel))
            self.cancel = []

    def nudge(self) -> None:
        self._nudged.set()


class Output(NamedTuple):
    name: str
    datatype: str
    shape: Tuple[int, ...]
    data: bytes

    @property
    def array(self) -> Any:
        if self.datatype == "BYTES":
            return bytes_tensor.object_array(bytes_tensor.split_elements(self.data), self.shape)
        return np.frombuffer(self.data, numpy_types.DTYPE[self.datatype]).reshape(self.shape)


class LoadedModel:
    """A model and its session; ``execute`` takes the requests of one batch, ``infer`` one request's inputs.

    The Executed that comes out has all responses there are: those sent, those returned, those to the abandoned."""

    def __init__(self, model_file: str, config: Dict[str, Any]) -> None:
        args = {"model_config": json.dumps(config), "model_name": config["name"], "model_version": "1"}
        self.memory = Memory()
        self.port = Port()
        self.logs: List[Tuple[str, str, int, str]] = []
        self.model = user_model.UserModel.load(model_file, args)
        self.event_loop = event_loop.EventLoop()
        self.session = session.Session(
            self.model,
            "probe_0_0",
            self.memory,
            self.port,
            self.event_loop,
            lambda *line: self.logs.append(line),
            itertools.count().__next__,
        )
        self.port.on_cancel = self.session.cancel
        self._ids = itertools.count(1)

    def request(self, inputs: Dict[str, Any], **fields: Any) -> messages.Request:
        references = [self._reference(name, value) for name, value in inputs.items()]
        return messages.Request(next(self._ids), "probe", 1, references, **fields)

    def _reference(self, name: str, value: Any) -> messages.TensorRef:
        datatype, shape, data = value if isinstance(value, tuple) else _binary(value)
        return messages.TensorRef(name, datatype, shape, self.memory.put(data))

    def execute(self, *requests: messages.Request) -> messages.Executed:
        executed = self.session.execute(messages.Batch(7, list(requests)), self.memory.view, [])
        return executed._replace(responses=self.sent() + executed.responses + self.abandoned())

    def sent(self) -> List[messages.Response]:
        """By response senders, since the last time."""
        sent, self.port.sent = self.port.sent, []
        return sent

    def abandoned(self) -> List[messages.Response]:
        return self.session.delivery.take_abandoned()

    def infer(self, inputs: Dict[str, Any], **fields: Any) -> messages.Response:
        executed = self.execute(self.request(inputs, **fields))
        assert len(executed.responses) == 1
        return executed.responses[0]

    def outputs(self, response: messages.Response) -> List[Output]:
        assert response.error is None, response.error
        return [Output(*tensor[:3], bytes(self.memory.view(tensor))) for tensor in response.outputs]


def _binary(array: Any) -> Given:
    if array.dtype.kind == "O":
        return "BYTES", array.shape, bytes_tensor.join_elements(array)
    return numpy_types.DATATYPE[array.dtype], array.shape, array.tobytes()


@pytest.fixture
def version_dir(tmp_path: Path) -> Iterator[Path]:
    """Version 1 of a model named probe; what importing it does to the interpreter is undone."""
    folder = tmp_path / "probe" / "1"
    folder.mkdir(parents=True)
    path, argv, modules = sys.path[:], sys.argv, set(sys.modules)
    yield folder
    sys.path[:] = path
    sys.argv = argv
    for name in set(sys.modules) - modules:
        file = getattr(sys.modules[name], "__file__", None)
        if name.split(".")[0] == "1" or (file and file.startswith(str(tmp_path))):
            del sys.modules[name]


@pytest.fixture
def load(version_dir: Path) -> Callable[..., LoadedModel]:
    def load(source: str, outputs: Tuple[str, ...] = ("OUT",), **config: Any) -> LoadedModel:
        (version_dir / "model.py").write_text(
            "import triton_python_backend_utils as pb_utils\n" + textwrap.dedent(source)
        )
        named = [{"name": name} for name in outputs]
        return LoadedModel(str(version_dir / "model.py"), {"name": "probe", "output": named, **config})

    return load


# --- real stub processes ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bus(tmp_path_factory):
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.linger = 0
        broker = BareBroker(tmp_path_factory.mktemp("bus"), router)
        yield broker
        broker.close()


@pytest.fixture
def broker(bus):
    yield bus
    bus.end_stub()


@pytest.fixture(params=["by path", "forked"])
def start(request, broker):
    return broker.start_by_path if request.param == "by path" else broker.start


@pytest.fixture
def model(tmp_path):
    return functools.partial(write_model, tmp_path / "models")
