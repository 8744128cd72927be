"""What the core is told (events) and what it answers (actions for the shell to carry out)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Union

from broker.execution_env import ExecutionEnv
from broker.instance import LOCAL, not_healthy
from broker.model import ModelVersion, VersionSource
from broker.queue import Frames, Pending, ReplySink
from protocol.errors import InternalError, ServingError, Unavailable
from protocol.interpreters import Interpreter
from protocol.messages import Request, Response, TensorRef, ToBroker, ToStub
from protocol.services import Environment, HeldMetric, HeldStub

# --- events -----------------------------------------------------------------------------------------------------


class Submitted(NamedTuple):
    """A gateway hands over a request."""

    request: Request
    frames: Frames
    sink: ReplySink
    arrived_ns: int


class ClientGone(NamedTuple):
    """The client of this request is gone."""

    request: int


class OutputsRead(NamedTuple):
    """A gateway has read the outputs of a response."""

    origin: str
    lease: int


class StubSaid(NamedTuple):
    """A message came from a stub."""

    key: str
    message: ToBroker
    frames: Frames


class StubDied(NamedTuple):
    """A stub process is gone. ``status`` is its exit code, or minus the signal; ``inside`` the Batch.id that was in
    execute, 0 for none, None if its status word could not be read."""

    key: str
    status: int
    inside: int | None
    verdict: str = ""  # what clients are told, if the core has had it killed
    lost: bool = False  # with its host, and perhaps it lives: whatever it held may have been executed, or will be

    def error(self, instance: str) -> ServingError:
        """For what the process was doing."""
        if self.lost:
            return Unavailable(f"the stub host of instance '{instance}' was lost, and the request with it")
        return InternalError(self.verdict) if self.verdict else not_healthy(instance)

    @property
    def cause(self) -> str:
        return f"signal {-self.status}" if self.status < 0 else f"exit code {self.status}"


class HostJoined(NamedTuple):
    """A stub host is there, which runs the models that one of these patterns (fnmatch) fits."""

    host: str
    models: tuple[str, ...]
    gpus: tuple[int, ...] = ()
    held: tuple[HeldStub, ...] = ()  # stubs that another broker has started
    sink: Callable[[int], ReplySink] | None = None  # of a request that is inside them
    metrics: tuple[HeldMetric, ...] = ()  # what they have added to metrics of models


class HostLeaves(NamedTuple):
    """It is to have no new work; Dismiss answers once nothing runs there."""

    host: str


class HostLost(NamedTuple):
    """Its processes are out of reach, and not heard from again."""

    host: str


class LookedUp(NamedTuple):
    """The answer to LookUp. ``digest`` stands for all that the response may depend on; b"" if it could not be read."""

    request: int
    digest: bytes
    took_ns: int


class Kept(NamedTuple):
    """The answer to Keep; ``error`` is why not."""

    request: int
    took_ns: int
    error: str = ""


class LoadModels(NamedTuple):
    """Load these versions; those of one model stand or fall together. ``along`` are the models that nobody has named:
    they are for ensembles."""

    sources: list[VersionSource]
    along: frozenset[str] = frozenset()


class Prepared(NamedTuple):
    """The answer to Prepare: the interpreter that runs this version, or why there is none."""

    version: ModelVersion
    interpreter: Interpreter | None
    error: ServingError | None = None


Asker = Callable[[ServingError | None], None]  # who waits for a load or an unload to be done


class StubAsker(NamedTuple):
    """A model that waits for the Told to its Control; ``instance`` is its name, for texts."""

    key: str
    call: int
    instance: str


class Override(NamedTuple):
    """What is loaded in place of what the repository holds: another configuration (JSON text), and with ``files``, by
    their paths, a whole other directory."""

    config: str | None
    files: Mapping[str, bytes] = {}
    stamps: Mapping[int, str] = {}  # of versions that stubs run already, of these files: VersionSource.files


class LoadModel(NamedTuple):
    """Load a model, or load it again if its files have changed."""

    model: str
    override: Override | None
    asker: Asker | StubAsker
    quiet: bool = False  # the same has failed before, and the log has said why


class Reload(NamedTuple):
    """The files of a model have changed, and the operator wants that to be enough for loading it again."""

    model: str
    asker: Asker
    quiet: bool = False  # see LoadModel


class Removed(NamedTuple):
    """A model is not in the repositories any more, and what the operator wants is that it goes then."""

    model: str


class Polled(NamedTuple):
    """What the Poll of this number has found: versions to load, or why there are none."""

    number: int
    model: str
    sources: list[VersionSource]
    error: ServingError | None = None


class UnloadModel(NamedTuple):
    """Refuse new requests at once; the rest follows by itself."""

    model: str
    unload_dependents: bool
    asker: Asker | StubAsker


class StartServing(NamedTuple):
    """The models to begin with are loaded: from now on more may be asked for."""


class DeadlinePassed(NamedTuple):
    """``next_deadline`` has come."""


class AskedReady(NamedTuple):
    """Somebody outside wants to know whether this version, or with None the server, can do its work; TellReady answers
    by ``done``."""

    version: ModelVersion | None
    done: Callable[[bool], None]


class StopServing(NamedTuple):
    """Refuse new requests, answer those in flight, then finish every instance."""


Event = Union[
    Submitted,
    ClientGone,
    OutputsRead,
    StubSaid,
    StubDied,
    HostJoined,
    HostLeaves,
    HostLost,
    LookedUp,
    Kept,
    LoadModels,
    UnloadModel,
    Polled,
    LoadModel,
    Reload,
    Removed,
    Prepared,
    DeadlinePassed,
    AskedReady,
    StartServing,
    StopServing,
]

# --- actions ----------------------------------------------------------------------------------------------------


class Send(NamedTuple):
    """Send to a stub. Unless ``shared``, tensors by handle must be turned into inline frames first."""

    key: str
    message: ToStub
    frames: Frames = ()
    shared: bool = True


class Answer(NamedTuple):
    """Tell the request's gateway."""

    pending: Pending
    response: Response
    origin: str = ""
    frames: Frames = ()


class Pause(NamedTuple):
    """Let others have their turn of the loop before what follows."""


class LookUp(NamedTuple):
    """Digest a request to a model whose responses are cached; LookedUp answers. ``outputs`` are those asked for."""

    pending: Pending
    outputs: list[str]


class Keep(NamedTuple):
    """Copy the outputs of a response into the cache's memory, one after the other from ``start``, each aligned; Kept
    answers."""

    request: int
    start: int
    outputs: list[TensorRef]
    frames: Frames


class InputsReleased(NamedTuple):
    """The input lease of a request whose final response was ``retained`` is over."""

    pending: Pending


class Prepare(NamedTuple):
    """Make the environment ready that this version is to run in; Prepared tells the end."""

    version: ModelVersion
    env: ExecutionEnv


class Spawn(NamedTuple):
    """Start a stub process with this routing id; ``interpreter`` None is the server's own. Another host finds that, or
    makes it, from ``environment``."""

    key: str
    title: str  # for people: in the list of processes and before the lines that it prints
    source: VersionSource  # what it is to run
    interpreter: Interpreter | None
    instance: str = ""  # its name; "" for the process that completes the configuration
    host: str = LOCAL
    environment: Environment | None = None


class Kill(NamedTuple):
    key: str


class Abort(NamedTuple):
    """Have a stub write down the stacks of its threads, and die."""

    key: str


class WatchStatus(NamedTuple):
    """The stub's status word lies in the header of this segment."""

    key: str
    segment: str


class Dismiss(NamedTuple):
    """Nothing runs on this host any more, which is leaving."""

    host: str


class Poll(NamedTuple):
    """Read the model's directory; Polled answers. ``quiet`` as in LoadModel."""

    number: int
    model: str
    override: Override | None
    quiet: bool = False


class Discard(NamedTuple):
    """Remove this directory, which was made for one load."""

    directory: str


class TellDone(NamedTuple):
    """Call ``asker``."""

    asker: Asker
    error: ServingError | None


class Say(NamedTuple):
    """Log. ``level`` is "info", "warning", "error" or "debug", as the methods of structlog are called."""

    level: str
    event: str
    fields: dict[str, Any]


class ModelSaid(NamedTuple):
    """Log a line of the model's own, with its file and line; ``level`` is a letter (protocol.messages.Log)."""

    level: str
    file: str
    line: int
    text: str


class TellReady(NamedTuple):
    """Call ``done``."""

    done: Callable[[bool], None]
    ready: bool


Action = Union[
    Send,
    Answer,
    Pause,
    LookUp,
    Keep,
    InputsReleased,
    Prepare,
    Spawn,
    Kill,
    Abort,
    WatchStatus,
    Dismiss,
    Say,
    ModelSaid,
    TellReady,
    Poll,
    Discard,
    TellDone,
]
