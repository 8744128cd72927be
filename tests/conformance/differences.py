"""Where our answers are meant to differ from those of Triton 2.51, and why.

We follow Triton's HEAD where it changed after 2.51, and do not copy faults. ``ours`` holds what each step's answer
must contain. A case that is ``fatal`` is never sent to the real Triton.
"""

from __future__ import annotations

import json

from tests.conformance.author_differences import ARGUMENTS, CALLS, SENDERS, STATISTICS, Difference
from tests.conformance.replay import Answer
from tests.conformance.scheduling_differences import SCHEDULING


def error(status: int, text: str) -> Answer:
    return {"status": status, "body": json.dumps({"error": text}, separators=(",", ":"))}


def grpc_error(code: str, text: str) -> Answer:
    return {"code": code, "message": text}


_UNKNOWN = "Request for unknown model: "
_NOT_READY = "HEAD looks the model up before it asks whether it is ready; 2.51 says only that it is not ready"
_HEADER = "HEAD refuses a header length that is no 32-bit number; 2.51 takes it as 0 or compares it as it is"
_READY = "HEAD checks the type of 'ready' as an invalid argument"
_OVERFLOW = "HEAD refuses shapes whose sizes overflow; 2.51 computes with the overflow"
_CLASSES = "2.51 dies of a failed assertion when asked for the classes of a type that has no order"
_STREAM = "2.51 sometimes dies of a stream that ends with an error"
_INT32 = "value is out of range [ -2147483648, 2147483647 ]"
_LOST = {"error_message": _UNKNOWN + "'nobody' is not found", "infer_response": {"id": "1"}}
_SUM = {
    "infer_response": {
        "model_name": "add_sub",
        "model_version": "1",
        "id": "2",
        "parameters": {"triton_final_response": {"bool_param": True}},
        "outputs": [
            {"name": "OUTPUT0", "datatype": "FP32", "shape": ["4"]},
            {"name": "OUTPUT1", "datatype": "FP32", "shape": ["4"]},
        ],
        "raw_output_contents": ["AABAQAAAQEAAAEBAAABAQA==", "AACAvwAAgL8AAIC/AACAvw=="],
    }
}

_GENERATE = "2.51 answers every error of a model with 400 here; HEAD, and ours, with the status of its kind"


def generated(name: str, status: int, error: str | None = None, *more: str) -> dict[str, Difference]:
    """Of generate and generate_stream. ``more`` are the documents after the first, which is an error."""
    answer: Answer = {"status": status}
    single, several = dict(answer), dict(answer)
    if error is not None:
        documents = [json.dumps({"error": error}, separators=(",", ":")), *more]
        several["body"] = "".join(f"data: {document}\n\n" for document in documents)
        single["body"] = documents[0] if not more else json.dumps({"error": _NOT_ONE}, separators=(",", ":"))
    return {
        f"generate: {name}": Difference(_GENERATE, (single,)),
        f"generate_stream: {name}": Difference(_GENERATE, (several,)),
    }


_NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)

_RETURNED_ERROR = "a response with an error counts as a failure here, so that operators see it; Triton counts a success"
_FAILED_TWICE = (
    {"status": 500},
    {"status": 500, "body": '{"error":"not zero"}'},
    {"status": 200},
    {
        "response": {
            "model_stats": [
                {
                    "name": "failing",
                    "version": "1",
                    "execution_count": "2",
                    "inference_stats": {
                        "success": {},
                        "fail": {"count": "2"},
                        "queue": {},
                        "compute_input": {},
                        "compute_infer": {},
                        "compute_output": {},
                        "cache_hit": {},
                        "cache_miss": {},
                    },
                    "batch_stats": [
                        {
                            "batch_size": "1",
                            "compute_input": {"count": "2"},
                            "compute_infer": {"count": "2"},
                            "compute_output": {"count": "2"},
                        }
                    ],
                }
            ]
        }
    },
    {"status": 200},
)

KNOWN_DIFFERENCES = {
    # --- HEAD instead of 2.51
    "http unknown model ready": Difference(_NOT_READY, (error(404, _UNKNOWN + "'nobody' is not found"),)),
    "http model version outside the policy ready": Difference(
        _NOT_READY, (error(404, _UNKNOWN + "'versions' version 2 is not found"),)
    ),
    "http model version that never was ready": Difference(
        _NOT_READY, (error(404, _UNKNOWN + "'versions' version 9 is not found"),)
    ),
    "grpc unknown model ready": Difference(_NOT_READY, (grpc_error("NOT_FOUND", _UNKNOWN + "'nobody' is not found"),)),
    "grpc model version outside the policy ready": Difference(
        _NOT_READY, (grpc_error("NOT_FOUND", _UNKNOWN + "'versions' version 2 is not found"),)
    ),
    "http header length is no number": Difference(
        _HEADER, (error(400, "Unable to parse Inference-Header-Content-Length, got: abc"),)
    ),
    "http header length beyond 32 bits": Difference(
        _HEADER, (error(400, f"Unable to parse Inference-Header-Content-Length, {_INT32}, got: 99999999999"),)
    ),
    "http index, ready as a number": Difference(_READY, (error(400, "Invalid value for 'ready': expected a boolean"),)),
    "http index, ready as text": Difference(_READY, (error(400, "Invalid value for 'ready': expected a boolean"),)),
    "http shape of more elements than 64 bits": Difference(
        _OVERFLOW,
        (
            error(
                400,
                "invalid shape for input 'INPUT0': shape [2,4611686018427387904] causes total element count to exceed "
                "maximum size of 9223372036854775807",
            ),
        ),
    ),
    "http shape overflows in bytes": Difference(
        _OVERFLOW,
        (
            error(
                400,
                "byte size overflow for input 'INPUT0': element count (4611686018427387904) * data type size (4) "
                "exceeds maximum allowed size (9223372036854775807)",
            ),
        ),
    ),
    "grpc shape of more elements than 64 bits": Difference(
        "2.51 computes the size of a shape with an overflow",
        (
            grpc_error(
                "INVALID_ARGUMENT",
                "[request id: <id_unknown>] input byte size mismatch for input 'INPUT0' for model 'matrix'. Expected "
                "36893488147419103232, got 16",
            ),
        ),
    ),
    **generated("model: value_error", 500),
    **generated("model: too_many", 500),
    **generated("model: error_not_found", 404, "told: NOT_FOUND"),
    **generated("model: error_unavailable", 503, "told: UNAVAILABLE"),
    **generated("model: error_empty", 500, ""),
    **generated("responses: error", 404, "told"),
    **generated("responses: error final", 404, "told"),
    **generated(
        "responses: error 1 final",
        404,
        "told",
        '{"OUT":0,"TEXT":"t","id":"mine","model_name":"responses","model_version":"1"}',
    ),
    **generated("responses: raise", 500),
    # --- ours does more, or is stricter, on purpose
    "http model name is not decoded": Difference(
        "ours also looks a name up that is percent-encoded, as clients send it", ({"status": 200},)
    ),
    "http data for a shape with a zero": Difference(
        "2.51 ignores the data of a shape with a zero", (error(500, "<shape does not match true shape>"),)
    ),
    **{
        f"http JSON {datatype} of zero elements": Difference(
            "2.51 looks at the datatype of JSON data only where there is some, and then refuses to answer in JSON",
            (
                error(
                    400,
                    f"receiving {datatype} data via JSON is not supported. Please use the binary data format for input "
                    f"IN_{datatype}",
                ),
            ),
        )
        for datatype in ("FP16", "BF16")
    },
    # --- faults not copied
    "http model: float_forms": Difference(
        "2.51's last digit is not always the closest one (1.0000000200408774e21); it reads back as the same number",
        (
            {
                "status": 200,
                "body": '{"model_name":"misbehaving","model_version":"1","outputs":[{"name":"OUT","datatype":"FP32",'
                '"shape":[11],"data":[0.10000000149011612,1.0000000200408773e21,1.0000000116860974e-7,-0.0,'
                "30000001024.0,100000002004087730000.0,123456.7890625,0.000009999999747378752,NaN,Infinity,"
                "-Infinity]}]}",
            },
        ),
    ),
    "grpc model: twice": Difference(
        "2.51 writes the second of two outputs of one name into the first one's description",
        (
            {
                "code": "OK",
                "response": {
                    "model_name": "misbehaving",
                    "model_version": "1",
                    "id": "mine",
                    "outputs": [
                        {"name": "OUT", "datatype": "FP32", "shape": ["2"]},
                        {"name": "OUT", "datatype": "FP32", "shape": ["2"]},
                    ],
                    "raw_output_contents": ["AACAPwAAAEA=", "AAAAQAAAQEA="],
                },
            },
        ),
    ),
    "http model: generator": Difference(
        "2.51 runs a generator as a coroutine, and its error holds an address",
        (
            error(
                500,
                "Failed to process the request(s) for model 'misbehaving_0', message: Expected a list in the execute "
                "return, found type '<class 'generator'>'.",
            ),
        ),
    ),
    "stream ended by a model's error": Difference(
        _STREAM, ({"code": "NOT_FOUND", "message": "told: NOT_FOUND", "responses": []},), fatal=True
    ),
    "stream ended by nothing, though strict": Difference(
        _STREAM, ({"code": "OK", "responses": [_LOST, _SUM]},), fatal=True
    ),
    "statistics after two failures": Difference(_RETURNED_ERROR, _FAILED_TWICE),
    "http classification of text": Difference(_CLASSES, ({"status": 400},), fatal=True),
    "http classification of booleans": Difference(_CLASSES, ({"status": 400},), fatal=True),
    # --- what a model sees and does
    **ARGUMENTS,
    **CALLS,
    **SENDERS,
    **STATISTICS,
    # --- how requests are scheduled
    **SCHEDULING,
}


def expected(name: str, theirs: list[Answer]) -> list[Answer]:
    """What our server must answer where the real one answered ``theirs``."""
    difference = KNOWN_DIFFERENCES.get(name)
    return list(difference.ours) if difference else theirs


def agree(name: str, wanted: list[Answer], actual: list[Answer]) -> bool:
    if name not in KNOWN_DIFFERENCES:
        return wanted == actual
    return all(want.items() <= got.items() for want, got in zip(wanted, actual, strict=True))
