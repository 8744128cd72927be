"""Every message between the services of a scaled stack: gateways and stub hosts dial the broker, which never dials.

One ZeroMQ message is a MessagePack array, whose first element is its kind, and the frames of inline tensors. What one
turn of an event loop brings for a peer leaves as one message where it can, so most messages carry items; an item that
brings frames says how many, and they follow in the order of the items. ``TensorRef.place`` counts from the first frame
of its item.

A service chooses its id at its start: eight hexadecimal digits, which are its ZeroMQ routing id and stand in the names
of the segments of its host (``shm.segment``), so that it is known whose memory a handle means.

    gateway, stub host        broker
      Join               ->                 at first, and whenever the broker is another process than before
                         <-   Welcome       or Refused, after which the connection is over
      Proved             ->                 which of the probes it could read
      Unanswered | Holds ->                 what it has of an earlier connection, if anything
                         <-   Fate, Catalogue  gateways alone; Catalogue again whenever it changes
      Beat               <->  Beat          whenever nothing else was said for Welcome.beat_ns

Standard library only. Times are int nanoseconds.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

from protocol.messages import Handle, Request, Response
from protocol.signature import IndexEntry, Signature
from protocol.statistics import ModelStatistics

VERSION = 1  # of these messages; a peer that says another one is refused

# A service that is lost may only have been held up, and go on where it was: what it may look at in memory that others
# own is kept for it so long. One that was held up for longer forgets what it had been told, and joins anew.
FORGOTTEN_NS = 60 * 10**9

GATEWAY, STUB_HOST = "gateway", "stub"  # Join.role

# Of Request.id: a gateway numbers its requests from (the low bits of its id) << COUNTER_BITS.
COUNTER_BITS = 40
GATEWAY_BITS = 23


def first_request(service: str) -> int:
    """The lowest Request.id of the gateway of this id."""
    return (int(service, 16) & ((1 << GATEWAY_BITS) - 1)) << COUNTER_BITS


Error = Optional[Tuple[int, str]]  # ErrorKind number and text


# --- both roles to the broker -----------------------------------------------------------------------------------


class Join(NamedTuple):
    """``probe`` is where others find ``nonce`` if they share memory with this service; an empty segment name means that
    it has none. The rest is of stub hosts."""

    kind: str
    version: int
    cluster: str
    role: str
    service: str  # its id
    name: str  # for people: the host's
    probe: Handle
    nonce: bytes
    models: List[str] = []  # patterns (fnmatch) of the models that this host runs
    gpus: List[int] = []  # CUDA device ids


class Proved(NamedTuple):
    """``nonces``, by service, of those of Welcome.probes that could be read; most often one or none."""

    kind: str
    nonces: Dict[str, bytes]


class Beat(NamedTuple):
    """I am here."""

    kind: str


class Leave(NamedTuple):
    """Give me no new work; Dismissed follows once all that I have is done."""

    kind: str


class Fetched(NamedTuple):
    """Answers Fetch: one frame for each handle, or why not."""

    kind: str
    number: int
    error: str = ""


# --- broker to both roles ---------------------------------------------------------------------------------------


class Welcome(NamedTuple):
    """``probes`` are of services with which this one may share memory: one of each group of those that do. ``nonce`` is
    for stub hosts: each of their stubs is to read it in memory of its host (``Load.probe``) and to say it."""

    kind: str
    version: int
    broker: str  # another one for each process of the broker
    beat_ns: int
    silence_ns: int  # after so long without a word the other side counts as lost
    probes: Dict[str, Handle]
    nonce: bytes = b""
    repositories: List[str] = []  # the broker's directories, which may lie elsewhere on a stub host


ID_IN_USE = "id in use"  # how a reason to refuse begins that another id is an answer to


class Refused(NamedTuple):
    """You cannot join; why, for the log."""

    kind: str
    reason: str


class Dismissed(NamedTuple):
    """You may go: nothing is left of what you had."""

    kind: str


class Fetch(NamedTuple):
    """Send what lies there: somebody is to read it who does not share your memory."""

    kind: str
    number: int
    handles: List[Handle]
    fleeting: bool = False  # the lease may end before the bytes have left: send a copy


# --- gateway to broker ------------------------------------------------------------------------------------------


class NewRequests(NamedTuple):
    """Requests, each with the number of its frames. ``read`` is what Read says, with no message of its own."""

    kind: str
    requests: List[Tuple[Request, int]]
    read: List[Tuple[str, int]] = []


class Withdrawn(NamedTuple):
    """The clients of these requests are gone. They are still to be answered."""

    kind: str
    requests: List[int]


class Read(NamedTuple):
    """Origin and lease of responses whose outputs have been read."""

    kind: str
    leases: List[Tuple[str, int]]


class Ask(NamedTuple):
    """``operation`` is "ready" (of the server, or of ``model``), "statistics", "index", "load" or "unload". Said
    answers."""

    kind: str
    number: int
    operation: str
    model: str = ""
    version: int = -1
    ready: bool = False  # index: only what is READY
    config: Optional[str] = None  # load: JSON in place of config.pbtxt
    files: Dict[str, bytes] = {}  # load: contents by "file:<path>"
    unload_dependents: bool = False


class Unanswered(NamedTuple):
    """Requests of an earlier connection that were sent and have no final response yet. Fate answers."""

    kind: str
    requests: List[int]
    hosts: List[str]  # the stub hosts that there were, by service: one of them may have got some
    reading: List[Tuple[str, int]] = []  # origin and lease of responses whose outputs it still reads


# --- broker to gateway ------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A version as the repository index has it. ``signature`` if it is READY; ``shared`` if all its instances share
    memory with this gateway, so that tensors may go by handle; else frames spare a round trip. Version -1: there is
    none; ``error`` is what whoever asks for it is told."""

    version: int
    state: str
    signature: Optional[Signature] = None
    shared: bool = False
    error: Error = None


class Catalogue(NamedTuple):
    """The models that have changed (all of them in the first one), each with all its rows; none: it is not known. With
    ``namespaces`` a name may mean one of several, and one that is not known is an invalid argument."""

    kind: str
    models: Dict[str, List[Row]]
    hosts: List[str]  # the stub hosts that there are, by service
    namespaces: bool = False


class Answers(NamedTuple):
    """Responses, each with the origin of its lease and the number of its frames. ``released`` are requests whose final
    response was ``retained`` and whose inputs are in use no more."""

    kind: str
    responses: List[Tuple[Response, str, int]]
    released: List[int]


class Said(NamedTuple):
    """Answers Ask."""

    kind: str
    number: int
    error: Error = None
    ready: bool = False
    statistics: List[ModelStatistics] = []
    rows: List[IndexEntry] = []  # of the index


class Fate(NamedTuple):
    """Of Unanswered: no stub has had those of ``again``, send them again; those of ``lost`` will not be answered; the
    others will."""

    kind: str
    again: List[int]
    lost: List[int]


# --- stub host to broker ----------------------------------------------------------------------------------------


class FromStubs(NamedTuple):
    """Messages of stubs: routing id, header (protocol.messages) and number of frames of each, in their order."""

    kind: str
    messages: List[Tuple[str, bytes, int]]


class Died(NamedTuple):
    """A stub is dead and its memory gone; after its last message. ``inside`` is the Batch.id in execute, 0 for none,
    None if that could not be read. With ``error`` it could not be started, and that is why."""

    kind: str
    key: str
    status: int
    inside: Optional[int]
    error: Error = None


class Given(NamedTuple):
    """With what a request had a model loaded in place of what its repository holds."""

    config: Optional[str]  # JSON
    files: bool  # a whole directory


class HeldStub(NamedTuple):
    """A stub that is alive: what it was started as, and what it has been given and not answered. ``files``, by path,
    are those that were given with its model; {} too if they stand with a like stub, or are too large."""

    key: str
    model: str
    version: int
    instance: str
    stamp: str  # Start.stamp
    config: str  # the model_config that it was loaded with
    ready: bytes  # its Ready, as it said it; b"" if it has not
    batches: List[Tuple[int, List[int]]]  # Batch.id, Request.id
    open: List[int]  # requests whose execute has returned without a final response
    lent: List[int] = []  # leases of its outputs that nobody has told it the end of
    reading: List[Tuple[str, int]] = []  # origin and lease of outputs of others that it still reads
    made: List[bytes] = []  # NewFamily and NewMetric of the metrics that its model has
    given: Optional[Given] = None
    files: Dict[str, bytes] = {}


class HeldMetric(NamedTuple):
    """What stubs of one host have added to a metric of models; ``is_set`` if a gauge was set, and to what. ``counts``
    are of the buckets of a histogram, ``sum`` of its observations."""

    family: str
    labels: List[Tuple[str, str]]  # in order of their names
    value: float
    is_set: bool
    counts: List[int]
    sum: float


class Holds(NamedTuple):
    """What a stub host has when it joins a broker anew. Stubs that the broker does not want are told to end.
    ``answered`` are requests whose final response was sent so late that an earlier broker may have died with it."""

    kind: str
    stubs: List[HeldStub]
    answered: List[int] = []
    metrics: List[HeldMetric] = []


# --- broker to stub host ----------------------------------------------------------------------------------------


class Environment(NamedTuple):
    """What a stub is to run in: a broker.execution_env.ExecutionEnv."""

    path: str
    asked_by: str
    is_requirements: bool


class Start(NamedTuple):
    """Start a stub. Its first message, or Died, answers.

    Paths, here and in the stub's Load, are the broker's: the host looks for those inside a repository in its own, and
    for those inside ``directory``, if that came with its ``files``, where it has written them."""

    kind: str
    key: str
    title: str
    model: str
    version: int
    instance: str
    stamp: str  # VersionSource.stamp: another one if the stub would be another
    directory: str  # of the model
    environment: Optional[Environment] = None  # None: the host's own Python
    files: Dict[str, bytes] = {}  # by path in ``directory``; {} if it lies in a repository
    given: Optional[Given] = None


class Stop(NamedTuple):
    """SIGKILL for a stub, or with ``abort`` SIGABRT. Died answers, unless it is dead already."""

    kind: str
    key: str
    abort: bool


class ToStubs(NamedTuple):
    """Messages to stubs, as FromStubs."""

    kind: str
    messages: List[Tuple[str, bytes, int]]


# The first element of each message on the wire.
JOIN, PROVED, BEAT, LEAVE, FETCHED = "J", "P", "B", "L", "F"
WELCOME, REFUSED, DISMISSED, FETCH = "W", "R", "D", "G"
NEW_REQUESTS, WITHDRAWN, READ, ASK, UNANSWERED = "S", "C", "E", "A", "U"
CATALOGUE, ANSWERS, SAID, FATE = "K", "N", "I", "T"
FROM_STUBS, DIED, HOLDS = "M", "X", "H"
START, STOP, TO_STUBS = "Z", "Q", "O"

FromService = Union[
    Join, Proved, Beat, Leave, Fetched, NewRequests, Withdrawn, Read, Ask, Unanswered, FromStubs, Died, Holds
]
ToService = Union[Welcome, Refused, Beat, Dismissed, Fetch, Catalogue, Answers, Said, Fate, Start, Stop, ToStubs]

FROM_SERVICE: Dict[str, Any] = {
    JOIN: Join,
    PROVED: Proved,
    BEAT: Beat,
    LEAVE: Leave,
    FETCHED: Fetched,
    NEW_REQUESTS: NewRequests,
    WITHDRAWN: Withdrawn,
    READ: Read,
    ASK: Ask,
    UNANSWERED: Unanswered,
    FROM_STUBS: FromStubs,
    DIED: Died,
    HOLDS: Holds,
}
TO_SERVICE: Dict[str, Any] = {
    WELCOME: Welcome,
    REFUSED: Refused,
    BEAT: Beat,
    DISMISSED: Dismissed,
    FETCH: Fetch,
    CATALOGUE: Catalogue,
    ANSWERS: Answers,
    SAID: Said,
    FATE: Fate,
    START: Start,
    STOP: Stop,
    TO_STUBS: ToStubs,
}
