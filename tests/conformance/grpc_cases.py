"""Inference over gRPC, good and bad, unary and streamed."""

from __future__ import annotations

from tritonclient.grpc import service_pb2

from tests.conformance.requests import (
    Case,
    Contents,
    Stream,
    case,
    grpc_input,
    grpc_output,
    infer_request,
    length_prefixed,
    rpc_infer,
)
from tests.conformance.values import SAMPLES, Sample, as_contents

F, I32, S = "FP32", "INT32", "BYTES"
ONES, TWOS = b"\0\0\x80?" * 4, b"\0\0\0@" * 4
A, B = grpc_input("INPUT0", F, [4]), grpc_input("INPUT1", F, [4])
BOTH, PAIR = [A, B], [ONES, TWOS]
FLOATS = Contents({"fp32_contents": [1, 2, 3, 4]})
TYPED = [grpc_input("INPUT0", F, [4], FLOATS), grpc_input("INPUT1", F, [4], FLOATS)]


def datatype_cases(sample: Sample) -> list[Case]:
    name, kind = sample.input_name, sample.datatype
    cases = [
        case(f"grpc raw {kind}", rpc_infer("echo", [grpc_input(name, kind, [sample.length])], [sample.binary])),
        case(f"grpc raw {kind} of zero elements", rpc_infer("echo", [grpc_input(name, kind, [0])], [b""])),
        case(
            f"grpc raw {kind} too short",
            rpc_infer("echo", [grpc_input(name, kind, [sample.length])], [sample.binary[:-1]]),
        ),
    ]
    if not sample.field:
        return cases
    contents = Contents({sample.field: as_contents(sample)})
    fewer = Contents({sample.field: as_contents(sample)[:3]})
    return [
        *cases,
        case(f"grpc typed {kind}", rpc_infer("echo", [grpc_input(name, kind, [sample.length], contents)])),
        case(f"grpc typed {kind}, too few", rpc_infer("echo", [grpc_input(name, kind, [sample.length], fewer)])),
        case(f"grpc typed {kind}, none for a shape with zero", rpc_infer("echo", [grpc_input(name, kind, [0])])),
    ]


GOOD = [
    case("grpc add_sub", rpc_infer("add_sub", BOTH, PAIR)),
    case("grpc add_sub typed", rpc_infer("add_sub", TYPED)),
    case("grpc inputs in reverse order", rpc_infer("add_sub", [B, A], [TWOS, ONES])),
    case("grpc request id is echoed", rpc_infer("add_sub", BOTH, PAIR, id="my id")),
    case("grpc version", rpc_infer("add_sub", BOTH, PAIR, version="1")),
    case("grpc one output of two", rpc_infer("add_sub", BOTH, PAIR, outputs=[grpc_output("OUTPUT1")])),
    case(
        "grpc outputs in reverse order",
        rpc_infer("add_sub", BOTH, PAIR, outputs=[grpc_output("OUTPUT1"), grpc_output("OUTPUT0")]),
    ),
    case("grpc further raw contents are ignored", rpc_infer("add_sub", BOTH, [*PAIR, b"more"])),
    case(
        "grpc batch",
        rpc_infer(
            "batched",
            [grpc_input("INPUT0", F, [2, 2]), grpc_input("INPUT1", S, [2, 1])],
            [ONES, length_prefixed(b"a", b"\0b")],
        ),
    ),
    case(
        "grpc INT8 contents are cut",
        rpc_infer("echo", [grpc_input("IN_INT8", "INT8", [2], Contents({"int_contents": [300, -129]}))]),
    ),
    case(
        "grpc shapes are changed for the model",
        rpc_infer(
            "reshaped", [grpc_input("SQUARE", F, [1, 4]), grpc_input("SCALAR", I32, [1, 1])], [ONES, b"\5\0\0\0"]
        ),
    ),
    case(
        "grpc optional input left out", rpc_infer("optional", [grpc_input("INPUT0", I32, [2])], [b"\1\0\0\0\2\0\0\0"])
    ),
    case(
        "grpc classification",
        rpc_infer(
            "classified",
            [grpc_input("INPUT0", F, [1, 3])],
            [b"\0\0\x80>\0\0 @\0\0\x80\xbf"],
            outputs=[grpc_output("OUTPUT0", classification=2)],
        ),
    ),
    case(
        "grpc binary_data of an output is ignored",
        rpc_infer("add_sub", BOTH, PAIR, outputs=[grpc_output("OUTPUT0", binary_data=True)]),
    ),
]

ONE = [grpc_input("INPUT0", I32, [1], Contents({"int_contents": [7]}))]


def told(name: str, id: str = "", **values: object) -> Case:
    return case(
        f"grpc model is told {name}",
        rpc_infer("request_facts", ONE, outputs=[grpc_output("FACTS")], id=id, values=values),
    )


FACTS = [
    told("nothing"),
    told("the request id", id="abc"),
    told("free parameters", text="x\u2603", whole=-3, flag=True, real=1.5, large=2**40),
    told("a sequence", sequence_id=42, sequence_start=True, sequence_end=False),
    told("a sequence by text", sequence_id="seq-1", sequence_end=True),
    told("a timeout", timeout=5000000),
    told("a priority", priority=1),
    told("an unsigned priority", priority=("uint64_param", 1)),
    told("what is free here but known to HTTP", binary_data_output=True),
]

YES = [grpc_input("INPUT0", "BOOL", [1], Contents({"bool_contents": [True]}))]
LOOKUP = [
    case("grpc highest version by default", rpc_infer("versions", YES)),
    case("grpc version 1 of two", rpc_infer("versions", YES, version="1")),
    case("grpc version outside the policy", rpc_infer("versions", YES, version="2")),
    case("grpc unknown model", rpc_infer("nobody", BOTH, PAIR)),
    case("grpc model without a name", rpc_infer("", BOTH, PAIR)),
    case("grpc unknown version", rpc_infer("add_sub", BOTH, PAIR, version="7")),
    case("grpc version zero", rpc_infer("add_sub", BOTH, PAIR, version="0")),
    case("grpc version with leading zeros", rpc_infer("add_sub", BOTH, PAIR, version="01")),
    case("grpc version that is no number", rpc_infer("add_sub", BOTH, PAIR, version="one")),
    case("grpc version below zero", rpc_infer("add_sub", BOTH, PAIR, version="-2")),
    case("grpc version -1", rpc_infer("add_sub", BOTH, PAIR, version="-1")),
    case("grpc version beyond 64 bits", rpc_infer("add_sub", BOTH, PAIR, version="99999999999999999999")),
    case("grpc decoupled model", rpc_infer("decoupled", ONE)),
]

BAD = [
    case("grpc unknown output", rpc_infer("add_sub", BOTH, PAIR, outputs=[grpc_output("NOPE")])),
    case(
        "grpc duplicate output",
        rpc_infer("add_sub", BOTH, PAIR, outputs=[grpc_output("OUTPUT0"), grpc_output("OUTPUT0")]),
    ),
    case("grpc missing input", rpc_infer("add_sub", [A], [ONES])),
    case("grpc missing input, with id", rpc_infer("add_sub", [A], [ONES], id="me")),
    case("grpc no inputs", rpc_infer("add_sub", [])),
    case("grpc unknown input", rpc_infer("add_sub", [A, grpc_input("NOPE", F, [4])], PAIR)),
    case("grpc duplicate input", rpc_infer("add_sub", [A, A], PAIR)),
    case(
        "grpc required input missing, optional given",
        rpc_infer("optional", [grpc_input("INPUT1", I32, [2])], [b"\1\0\0\0\2\0\0\0"]),
    ),
    case("grpc other datatype", rpc_infer("add_sub", [grpc_input("INPUT0", I32, [4]), B], PAIR)),
    case("grpc unknown datatype", rpc_infer("add_sub", [grpc_input("INPUT0", "FP8", [4]), B], PAIR)),
    case("grpc empty datatype", rpc_infer("add_sub", [grpc_input("INPUT0", "", [4]), B], PAIR)),
    case("grpc input without a name", rpc_infer("add_sub", [grpc_input("", F, [4]), B], PAIR)),
    case("grpc other dimension", rpc_infer("add_sub", [grpc_input("INPUT0", F, [2]), B], [ONES[:8], TWOS])),
    case("grpc other rank", rpc_infer("add_sub", [grpc_input("INPUT0", F, [2, 2]), B], PAIR)),
    case("grpc no shape", rpc_infer("add_sub", [grpc_input("INPUT0", F, []), B], [ONES[:4], TWOS])),
    case("grpc dimension below zero", rpc_infer("raw", [grpc_input("INPUT0", F, [-1])], [ONES])),
    case("grpc dimension below zero of a fixed shape", rpc_infer("add_sub", [grpc_input("INPUT0", F, [-4]), B], PAIR)),
    case("grpc size is not the shape's", rpc_infer("add_sub", BOTH, [ONES[:12], TWOS])),
    case("grpc size is more than the shape's", rpc_infer("add_sub", BOTH, [ONES + b"\0\0\0\0", TWOS])),
    case(
        "grpc shape of more elements than 64 bits", rpc_infer("matrix", [grpc_input("INPUT0", I32, [2, 2**62])], [ONES])
    ),
    case(
        "grpc batch without its dimension",
        rpc_infer("counted", [grpc_input("INPUT0", I32, [2])], [b"\1\0\0\0\2\0\0\0"]),
    ),
    case("grpc batch with no dimensions", rpc_infer("counted", [grpc_input("INPUT0", I32, [])], [b"\1\0\0\0"])),
    case("grpc batch too large", rpc_infer("counted", [grpc_input("INPUT0", I32, [5, 2])], [b"\0" * 40])),
    case(
        "grpc batch sizes differ",
        rpc_infer(
            "batched", [grpc_input("INPUT0", F, [2, 2]), grpc_input("INPUT1", S, [1, 1])], [ONES, length_prefixed(b"a")]
        ),
    ),
    case("grpc text element without its length", rpc_infer("echo", [grpc_input("IN_BYTES", S, [1])], [b"ab"])),
    case(
        "grpc text element shorter than its length",
        rpc_infer("echo", [grpc_input("IN_BYTES", S, [1])], [b"\x09\0\0\0ab"]),
    ),
    case(
        "grpc more text elements than the shape",
        rpc_infer("echo", [grpc_input("IN_BYTES", S, [1])], [length_prefixed(b"a", b"b")]),
    ),
    case(
        "grpc fewer text elements than the shape",
        rpc_infer("echo", [grpc_input("IN_BYTES", S, [3])], [length_prefixed(b"a", b"b")]),
    ),
    case("grpc no data", rpc_infer("add_sub", BOTH)),
    case("grpc fewer raw contents than inputs", rpc_infer("add_sub", BOTH, [ONES])),
    case("grpc raw and typed contents", rpc_infer("add_sub", TYPED, PAIR)),
    case(
        "grpc typed contents in another field",
        rpc_infer("add_sub", [grpc_input("INPUT0", F, [4], Contents({"int_contents": [1, 2, 3, 4]})), TYPED[1]]),
    ),
    case(
        "grpc typed contents in two fields",
        rpc_infer(
            "add_sub",
            [grpc_input("INPUT0", F, [4], Contents({"fp32_contents": [1, 2, 3, 4], "int_contents": [1]})), TYPED[1]],
        ),
    ),
    case(
        "grpc typed contents in two other fields",
        rpc_infer(
            "add_sub",
            [grpc_input("INPUT0", F, [4], Contents({"int_contents": [1], "bool_contents": [True]})), TYPED[1]],
        ),
    ),
    *(
        case(
            f"grpc {field} for {kind}",
            rpc_infer("echo", [grpc_input(f"IN_{kind}", kind, [1], Contents({field: [value]}))]),
        )
        for field, kind, value in (
            ("bool_contents", "INT32", True),
            ("int_contents", "INT64", 1),
            ("int64_contents", "INT32", 1),
            ("uint_contents", "UINT64", 1),
            ("uint64_contents", "UINT8", 1),
            ("fp64_contents", "FP32", 1),
            ("bytes_contents", "FP32", b"a"),
            ("fp32_contents", "FP16", 1),
            ("fp32_contents", "BYTES", 1),
        )
    ),
    case(
        "grpc shared memory of no region",
        rpc_infer(
            "add_sub",
            [grpc_input("INPUT0", F, [4], shared_memory_region="nowhere", shared_memory_byte_size=16), B],
            [TWOS],
        ),
    ),
    case(
        "grpc shared memory without a size",
        rpc_infer("add_sub", [grpc_input("INPUT0", F, [4], shared_memory_region="nowhere"), B], [TWOS]),
    ),
    case(
        "grpc shared memory size without a region",
        rpc_infer("add_sub", [grpc_input("INPUT0", F, [4], shared_memory_byte_size=16), B], PAIR),
    ),
    case(
        "grpc shared memory offset without a region",
        rpc_infer("add_sub", [grpc_input("INPUT0", F, [4], shared_memory_offset=0), B], PAIR),
    ),
    case(
        "grpc shared memory region as a number",
        rpc_infer(
            "add_sub", [grpc_input("INPUT0", F, [4], shared_memory_region=1, shared_memory_byte_size=16), B], PAIR
        ),
    ),
    case(
        "grpc shared memory size as text",
        rpc_infer(
            "add_sub", [grpc_input("INPUT0", F, [4], shared_memory_region="r", shared_memory_byte_size="16"), B], PAIR
        ),
    ),
    case(
        "grpc shared memory and typed contents",
        rpc_infer(
            "add_sub",
            [
                grpc_input("INPUT0", F, [4], FLOATS, shared_memory_region="nowhere", shared_memory_byte_size=16),
                TYPED[1],
            ],
        ),
    ),
]


def bad_parameter(name: str, **values: object) -> Case:
    return case(f"grpc parameter {name}", rpc_infer("add_sub", BOTH, PAIR, values=values))


def bad_output(name: str, **values: object) -> Case:
    return case(f"grpc output {name}", rpc_infer("add_sub", BOTH, PAIR, outputs=[grpc_output("OUTPUT0", **values)]))


PARAMETERS = [
    bad_parameter("sequence_id as a boolean", sequence_id=True),
    bad_parameter("sequence_start as a number", sequence_start=1),
    bad_parameter("sequence_end as text", sequence_end="yes"),
    bad_parameter("priority as text", priority="high"),
    bad_parameter("priority below zero", priority=-1),
    bad_parameter("timeout as text", timeout="soon"),
    bad_parameter("timeout below zero", timeout=-1),
    bad_parameter("of an unsigned number", mine=("uint64_param", 3)),
    bad_parameter("reserved for Triton", triton_mine=1),
    bad_parameter("triton_enable_empty_final_response as text", triton_enable_empty_final_response="yes"),
    bad_parameter("triton_enable_empty_final_response of a unary call", triton_enable_empty_final_response=True),
    bad_output("classification as text", classification="2"),
    bad_output("classification below zero", classification=-2),
    bad_output(
        "classification and shared memory", classification=2, shared_memory_region="r", shared_memory_byte_size=8
    ),
    bad_output("shared memory of no region", shared_memory_region="nowhere", shared_memory_byte_size=16),
    bad_output("shared memory size without a region", shared_memory_byte_size=16),
    bad_output("shared memory without a size", shared_memory_region="r"),
    bad_output("unknown parameter", colour="red"),
    case("grpc parameter of no kind", rpc_infer("add_sub", BOTH, PAIR, values={"mine": ("string_param", "")})),
]


def request(model: str = "add_sub", **more: object) -> service_pb2.ModelInferRequest:
    return infer_request(model, BOTH, PAIR, **more)  # type: ignore[arg-type]


FAILING = infer_request(
    "misbehaving", [grpc_input("ACTION", S, [1], Contents({"bytes_contents": [b"error_not_found"]}))], id="fails"
)
STRICT = (("triton_grpc_error", "true"),)
STREAMS = [
    case("stream of one", Stream((request(id="1"),))),
    case("stream of three, in order", Stream(tuple(request(id=str(i)) for i in range(3)))),
    case("stream of several models", Stream((request(id="1"), infer_request("versions", YES, id="2")))),
    case("stream of nothing", Stream(())),
    case("stream with an unknown model between", Stream((request(id="1"), request("nobody", id="2"), request(id="3")))),
    case(
        "stream with a bad input between",
        Stream((request(id="1"), infer_request("add_sub", [A], [ONES], id="2"), request(id="3"))),
    ),
    case("stream with a version that is no number", Stream((request(version="x", id="1"),))),
    case("stream with a failing model", Stream((FAILING, request(id="after")))),
    case("stream ended by a model's error", Stream((FAILING,), STRICT)),
    case("stream ended by nothing, though strict", Stream((request("nobody", id="1"), request(id="2")), STRICT)),
    case(
        "stream with empty finals wanted",
        Stream((request(id="1", values={"triton_enable_empty_final_response": True}),)),
    ),
    case("stream with a reserved parameter", Stream((request(id="1", values={"triton_mine": 1}),))),
]

CASES = [
    *(each for sample in SAMPLES for each in datatype_cases(sample)),
    *GOOD,
    *FACTS,
    *LOOKUP,
    *BAD,
    *PARAMETERS,
    *STREAMS,
]
