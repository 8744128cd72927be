"""Ensembles (the repository ``ensembles``): results, what steps are told, streams, errors, what does not fit."""

from __future__ import annotations

from typing import Any

from tests.conformance.requests import (
    Case,
    Contents,
    Http,
    Stream,
    case,
    grpc_input,
    http,
    infer,
    infer_request,
    output,
    rpc_infer,
    tensor,
)

GIVEN = [1.0, 2.0, 3.0, 4.0]
BEGINS_WITH_0 = [0.0, 1.0, 2.0, 3.0]
BAD = ("missing", "version", "circle", "input", "unmapped", "datatype", "shape", "batch", "streams", "below")


def ensemble(name: str, *steps: Any) -> Case:
    return case(f"ensemble: {name}", *steps, repository="ensembles")


def ask(model: str, data: list[float] = GIVEN, shape: list[int] | None = None, **members: Any) -> Http:
    return infer(model, [tensor("IN", "FP32", shape or [4], data)], **members)


def ask_stream(model: str, count: int) -> Stream:
    tensors = [grpc_input("N", "INT32", [1], Contents({"int_contents": [count]}))]
    values = {"triton_enable_empty_final_response": True}
    return Stream((infer_request(model, tensors, id="mine", values=values),))


CASES = [
    *(
        ensemble(f"{model} answers", ask(model))
        for model in (
            "chain",
            "diamond",
            "diamond_optional",
            "second",
            "optional",
            "fails",
            "raises",
            "told",
            "nested",
            "nested_fails",
            "batch_inside",
        )
    ),
    *(
        ensemble(f"{model} without an output of a step", ask(model, BEGINS_WITH_0))
        for model in ("diamond", "diamond_optional", "second")
    ),
    ensemble("an optional input that its model needs", ask("optional_needed"), ask("optional_needed", id="mine")),
    ensemble(
        "both inputs",
        *(
            infer(model, [tensor("IN", "FP32", [4], GIVEN), tensor("IN2", "FP32", [4], GIVEN)])
            for model in ("optional", "optional_needed")
        ),
    ),
    ensemble("a batch of one outside", ask("batch_outside", shape=[1, 4])),
    ensemble("a batch of two outside", ask("batch_outside", GIVEN * 2, [2, 4])),
    ensemble("batches of three and five", ask("batches", GIVEN * 3, [3, 4]), ask("batches", GIVEN * 5, [5, 4])),
    ensemble("a wrong shape for the ensemble", ask("chain", [*GIVEN, 5.0], [5])),
    ensemble("a wrong shape for a step", ask("varies"), ask("varies", id="mine"), ask("varies", [1.0, 2.0], [2])),
    ensemble("a step that is not needed", ask("branches", outputs=[output("F")])),
    ensemble("an unknown output", ask("chain", outputs=[output("t")])),
    *(
        ensemble(f"{model}: classes", ask(model, outputs=[output("OUT", classification=2)]))
        for model in ("labels_inherited", "labels_given")
    ),
    ensemble(
        "what the client said",
        ask(
            "told",
            id="mine",
            parameters={"sequence_id": 7, "sequence_start": True, "priority": 3, "timeout": 5000000, "free": "x"},
        ),
    ),
    ensemble(
        "the name of a sequence", ask("chain", id="mine", parameters={"sequence_id": "abc", "sequence_end": True})
    ),
    ensemble("a stream over HTTP", infer("stream", [tensor("N", "INT32", [1], [1])])),
    # Whether the last response of a longer stream bears the final flag is a matter of time.
    ensemble("a stream of nothing", ask_stream("stream", 0), ask_stream("stream_meets", 0)),
    ensemble(
        "over gRPC",
        *(
            rpc_infer(model, [grpc_input("IN", "FP32", [4], Contents({"fp32_contents": GIVEN}))], id="mine")
            for model in ("chain", "nested", "fails", "raises", "optional_needed")
        ),
    ),
    ensemble("metadata", *(http("GET", f"/v2/models/{model}") for model in ("chain", "batches", "optional", "stream"))),
    *(ensemble(f"bad_{what} is not there", ask(f"bad_{what}"), http("GET", f"/v2/models/bad_{what}")) for what in BAD),
]
