"""Response senders in default and decoupled mode, coroutines, rescheduled requests, and what is gathered to a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tritonclient.grpc import service_pb2

from tests.conformance.generate_cases import generate
from tests.conformance.requests import (
    Case,
    Contents,
    Http,
    Rpc,
    Stream,
    case,
    grpc_input,
    grpc_output,
    http,
    infer,
    infer_request,
    output,
    tensor,
)

# Steps in default mode, the last of which is what execute returns. The original must not wait for ever.
DEFAULT = [
    ("return",),
    ("return told",),
    ("send final", "return None"),
    ("send final", "return [None]"),
    ("send", "final", "return None"),
    ("send", "final", "return [None]"),
    ("send final", "return"),
    ("send", "final", "return"),
    ("error final", "return None"),
    ("empty final", "return None"),
    ("send", "send 2", "final", "return None"),
    ("send final", "send 2", "return None"),
    ("send final", "send 2 final", "return None"),
    ("send final", "final", "return None"),
    ("final", "send final", "return None"),
    ("!final", "return None"),
    ("nothing", "send final", "return None"),
    ("flag 2", "send final", "return None"),
    ("flag 2 alone", "send final", "return None"),
    ("!nothing", "return None"),
    ("!flag 2", "return"),
    ("send final", "!send 2", "return None"),
    ("send final", "raise"),
    ("send final", "return tuple"),
    ("send final", "return two"),
    ("send final", "return []"),
    ("send final", "return int"),
    ("later", "send final", "return None"),
    ("later", "send", "final", "return None"),
    ("later", "send final", "return [None]"),
    ("later", "send", "send 2", "final", "return None"),
    ("later", "final", "send final", "return None"),
    ("send final", "later", "send 2", "return None"),
    ("send final", "later", "final", "return None"),
    ("later", "send final", "return"),
    ("later", "send", "return"),
    ("later", "final", "return"),
]
DECOUPLED = [
    ("send final", "return None"),
    ("send", "final", "return None"),
    ("send", "send 2", "send 2 final", "return None"),
    ("final", "return None"),
    ("empty final", "return None"),
    ("send", "error", "send 2", "final", "return None"),
    ("error", "error final", "return None"),
    ("final", "send", "return None"),
    ("final", "final", "return None"),
    ("send final", "send 2", "return None"),
    ("send final", "send 2 final", "return None"),
    ("send final", "final", "return None"),
    ("send", "nothing", "flag 2", "flag 2 alone", "final", "return None"),
    ("send", "!nothing", "return None"),
    ("!flag 2", "return None"),
    ("final", "!send", "return None"),
    ("send final", "raise"),
    ("send", "raise"),
    ("raise",),
    ("send", "final", "return int"),
    ("send", "return int"),
    ("return",),
    ("return []",),
    ("return [None]",),
    ("later", "send final", "return None"),
    ("later", "send", "send 2", "final", "return None"),
    ("send", "later", "send 2", "final", "return None"),
    ("send", "later", "error final", "return None"),
    ("later", "final", "return None"),
    ("later", "final", "send", "return None"),
    ("later", "send final", "return int"),
]
EMPTY_FINAL = {"triton_enable_empty_final_response": True}


def steps_of(model: str, steps: Sequence[str], outputs: Any = None) -> Http:
    return infer(model, [tensor("STEPS", "BYTES", [len(steps)], list(steps))], outputs)


def message(model: str, steps: Sequence[str], id: str = "mine", outputs: Sequence[str] = (), **values: Any) -> Any:
    contents = Contents({"bytes_contents": [step.encode() for step in steps]})
    tensors = [grpc_input("STEPS", "BYTES", [len(steps)], contents)]
    return infer_request(model, tensors, id=id, outputs=[grpc_output(name) for name in outputs], values=values)


def scripted(*steps: str) -> list[Case]:
    """At both fronts, and what the model has noted."""
    name = ", ".join(steps)
    notes = steps_of("scripted", ["notes"])
    return [
        case(f"sender: {name}", steps_of("scripted", steps), notes),
        case(f"stream sender: {name}", Stream((message("scripted", steps),)), notes),
    ]


def streamed(*steps: str) -> list[Case]:
    name = ", ".join(steps)
    notes = Stream((message("scripted_decoupled", ["notes"]),))
    return [
        case(f"decoupled: {name}", Stream((message("scripted_decoupled", steps),)), notes),
        case(
            f"decoupled, empty final wanted: {name}",
            Stream((message("scripted_decoupled", steps, **EMPTY_FINAL),)),
            notes,
        ),
        case(
            f"generate_stream decoupled: {name}",
            generate("scripted_decoupled", {"STEPS": list(steps)}, stream=True),
            notes,
        ),
    ]


TWO = Stream(
    (
        message("scripted_decoupled", ("send", "final", "return None"), "1"),
        message("scripted_decoupled", ("send 2", "send 2", "final", "return None"), "2"),
    )
)
SENDERS = [
    *(one for steps in DEFAULT for one in scripted(*steps)),
    case("sender: requested output alone", steps_of("scripted", ("send final", "return None"), [output("OTHER")])),
    case("sender: returned, requested output alone", steps_of("scripted", ("return",), [output("OTHER")])),
    *(one for steps in DECOUPLED for one in streamed(*steps)),
    case(
        "decoupled: requested output alone",
        Stream((message("scripted_decoupled", ("send", "final", "return None"), outputs=["OTHER"]),)),
    ),
    case("decoupled: two requests", TWO),
    case("decoupled by infer", steps_of("scripted_decoupled", ("send final", "return None"))),
    case("decoupled by ModelInfer", Rpc("ModelInfer", message("scripted_decoupled", ("send final", "return None")))),
]


def asked(model: str, action: str) -> Http:
    return infer(model, [tensor("ACTION", "BYTES", [1], [action])])


def asked_stream(model: str, action: str) -> Stream:
    contents = Contents({"bytes_contents": [action.encode()]})
    return Stream((infer_request(model, [grpc_input("ACTION", "BYTES", [1], contents)], id="mine"),))


COROUTINES = [
    *(
        case(f"async execute: {action}", asked("asynchronous", action))
        for action in ["fine", "sent", "called", "streamed", "raise", "error", "tuple", "two", "int"]
    ),
    *(
        case(f"async decoupled execute: {action}", asked_stream("asynchronous_decoupled", action))
        for action in ("fine", "gather", "raise", "raise after final")
    ),
]


def rounds(model: str, number: int, **more: Any) -> Http:
    return infer(model, [tensor("ROUNDS", "INT32", [1], [number])], id="mine", **more)


def rounds_stream(number: int, **values: Any) -> Stream:
    contents = Contents({"int_contents": [number]})
    tensors = [grpc_input("ROUNDS", "INT32", [1], contents)]
    return Stream((infer_request("iterative_decoupled", tensors, id="mine", values=values),))


ITERATIVE = [
    *(case(f"iterative: {number} rounds", rounds("iterative", number)) for number in (1, 2, 5)),
    case("iterative: a response for what comes again", rounds("iterative", -2), rounds("iterative", 1)),
    *(case(f"iterative decoupled: {number} rounds", rounds_stream(number)) for number in (1, 3)),
    case("iterative decoupled: empty final wanted", rounds_stream(3, **EMPTY_FINAL)),
    case(
        "iterative decoupled by generate_stream",
        generate("iterative_decoupled", {"ROUNDS": [2], "id": "mine"}, stream=True),
    ),
]


def together(*rows: int) -> Stream:
    """Requests of so many rows each, sent at once."""
    requests = []
    for number, count in enumerate(rows):
        contents = Contents({"int_contents": [number] * count})
        requests.append(
            infer_request("gathered", [grpc_input("INPUT0", "INT32", [count, 1], contents)], id=str(number))
        )
    return Stream(tuple(requests))


GATHERED = [
    case(f"batch: requests of {', '.join(map(str, rows))}", together(*rows))
    for rows in ((4,), (1, 1, 1, 1), (2, 2), (1, 3), (3, 1), (2, 1, 1), (1, 1, 1, 1, 4), (4, 4), (1, 1), (3,), (3, 3))
]
COUNTED = [
    ("send final", "return None"),
    ("send", "send 2", "final", "return None"),
    ("final", "return None"),
    ("error final", "return None"),
    ("send", "send final", "return None"),
]
FIGURES = [
    case("statistics of batches", http("GET", "/v2/models/gathered/stats")),
    case(
        "statistics of responses",
        *(Stream((message("streamed", steps),)) for steps in COUNTED),
        Rpc("ModelStatistics", service_pb2.ModelStatisticsRequest(name="streamed")),
    ),
]

CASES = [*SENDERS, *COROUTINES, *ITERATIVE, *GATHERED, *FIGURES]
