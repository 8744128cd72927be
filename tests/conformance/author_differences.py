"""Where what a model sees, or does, is meant to differ from Triton 2.51, and why. Part of differences.py."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from tests.conformance.replay import Answer


class Difference(NamedTuple):
    """``ours`` holds what each step's answer must contain. What is ``fatal`` is never sent to the real Triton."""

    reason: str
    ours: tuple[Answer, ...]
    fatal: bool = False


def came_of(probe: Mapping[str, Any]) -> Answer:
    """The answer of the model ``author``."""
    text = json.dumps(probe, sort_keys=True)
    output = {"name": "OUT", "datatype": "BYTES", "shape": [1], "data": [text]}
    document = {"model_name": "author", "model_version": "1", "outputs": [output]}
    return {"status": 200, "body": json.dumps(document, separators=(",", ":"), ensure_ascii=False)}


def probed(reason: str, outcomes: Mapping[str, Mapping[str, Any]], fatal: bool = False) -> dict[str, Difference]:
    return {f"author: {name}": Difference(reason, (came_of(outcome),), fatal) for name, outcome in outcomes.items()}


def failed_call(model: str, text: str) -> dict[str, Any]:
    return {
        "error": f"Model {model} - Error when running inference: Request for unknown model: {text} is not found",
        "outputs": 0,
    }


_WORDS = (
    "Python's own words for an argument that is missing or unknown; pybind11 has the same for all that does not fit"
)
_MANGLED = "2.51 shows a mangled C++ name"
_LOOKED_UP = "HEAD looks a model up before it asks whether it is ready; 2.51 says only that it is not"
_CODE = "since a later release the error of a call keeps its code"
_LOST = "2.51 loses an error among streamed responses of a called model, and then may wait for ever"
_ALONE = "2.51 sometimes dies, or never answers, when a model brings files without a configuration"
_FAILED_LATE = "2.51 may die when a batch fails in which a request was answered already"
_NO_END = "2.51 tells no client that a response whose flag comes later was the last one"
_NO_FIGURES = "2.51's Python backend counts no responses"
_VANISHED = "in 2.51 what a coroutine raises in decoupled mode reaches nobody"
_KIND = "2.51 answers every error of a model with 400 here; HEAD, and ours, with the status of its kind"

_ONE, _TWO, _END = ({"OUT": list(range(count)), "TEXT": ["t"] * count} for count in (1, 2, 0))
_TOLD = {"error": "told", "outputs": 0}
_RAISED = {
    "error": "Failed to process the request(s) for model 'responses_0', message: ValueError: boom\n\nAt:\n"
    "  <repository>/responses/1/model.py(25): execute\n",
    "outputs": 0,
}
_RESPONSE = {
    "infer_response": {
        "model_name": "scripted",
        "model_version": "1",
        "id": "mine",
        "parameters": {"triton_final_response": {"bool_param": True}},
        "outputs": [
            {"name": "OUT", "datatype": "INT32", "shape": ["1"]},
            {"name": "OTHER", "datatype": "INT32", "shape": ["1"]},
        ],
        "raw_output_contents": ["AQAAAA==", "AQAAAA=="],
    }
}
_OK, _FINE = {"code": "OK"}, {"status": 200}
_STREAMED: tuple[Answer, ...] = ({"code": "OK", "responses": [_RESPONSE]}, _FINE)


def kinds(statuses: Mapping[str, int]) -> dict[str, Difference]:
    return {
        f"generate_stream decoupled: {name}": Difference(_KIND, ({"status": status}, _OK))
        for name, status in statuses.items()
    }


ARGUMENTS = {
    **probed(
        _WORDS,
        {
            f"{name}": {"TypeError": text}
            for name, text in {
                "arguments: unknown keyword": "InferenceRequest.__init__() got an unexpected keyword argument "
                "'priority'",
                "arguments: preferred memory of nothing": "PreferredMemory.__init__() missing 1 required positional "
                "argument: 'preferred_memory_type'",
                "arguments: set_release_flags by keyword": "InferenceRequest.set_release_flags() got some "
                "positional-only arguments passed as keyword arguments: 'flags'",
                "arguments: error without a message": "TritonError.__init__() missing 1 required positional argument: "
                "'message'",
                "arguments: log nothing": "Logger.log() missing 1 required positional argument: 'message'",
                "arguments: tensor by keywords": "Tensor.__init__() got some positional-only arguments passed as "
                "keyword arguments: 'name, numpy_array'",
                "arguments: tensor of nothing": "Tensor.__init__() missing 2 required positional arguments: 'name' and "
                "'numpy_array'",
                "arguments: dlpack by keyword": "Tensor.from_dlpack() got some positional-only arguments passed as "
                "keyword arguments: 'name, tensor'",
                "calls: exec with a strange keyword": "InferenceRequest.exec() got an unexpected keyword argument "
                "'timeout'",
                "metrics: increment by nothing": "Metric.increment() missing 1 required positional argument: 'value'",
                "metrics: kind missing": "MetricFamily.__init__() missing 1 required positional argument: 'kind'",
            }.items()
        },
    ),
    **probed(
        _MANGLED,
        {
            f"arguments: parameters {name}": {"TritonModelException": f"Expect dict, got <class '{kind}'>"}
            for name, kind in (("a list", "list"), ("text", "str"))
        },
    ),
}
CALLS = {
    **probed(
        _LOOKED_UP,
        {
            "calls: unknown version": {"value": failed_call("add_sub", "'add_sub' version 7")},
            "calls: version 0": {"value": failed_call("add_sub", "'add_sub' version 0")},
            "calls: unknown model": {"value": failed_call("nobody", "'nobody'")},
            "calls: unknown model and version": {"value": failed_call("nobody", "'nobody'")},
            "calls: model without a name": {"value": failed_call("", "''")},
            "calls: model that is not there any more": {"value": failed_call("versions", "'versions' version 2")},
            "calls: stream of an unknown model": {"value": [failed_call("nobody", "'nobody'")]},
            **{
                f"control: ready of an unknown {what}": {
                    "TritonModelException": "Failed to check model readiness: Failed to process the request for model "
                    f"'author_0', message: Request for unknown model: {text} is not found"
                }
                for what, text in (("model", "'nobody'"), ("version", "'author' version 7"))
            },
        },
    ),
    **probed(_CODE, {"calls: error keeps its code": {"value": "<__ErrorCode.NOT_FOUND: 2>"}}),
    **probed(
        _LOST,
        {
            "calls: stream of an error and the flag": {"value": [_TOLD, {}]},
            "calls: stream of an error between": {"value": [_ONE, _TOLD, _TWO, {}]},
            "calls: stream that raises": {"value": [_ONE, _RAISED]},
        },
        fatal=True,
    ),
    **probed(
        _ALONE,
        {
            "control: load with files alone": {
                "value": [
                    "Failed to load model: Failed to process the request for model 'author_0', message: failed to load "
                    "'spare', failed to poll from model repository",
                    True,
                    [5],
                ]
            }
        },
        fatal=True,
    ),
}
SENDERS = {
    **{
        f"{front}sender: send final, {end}": Difference(
            _FAILED_LATE, _STREAMED if front else (_FINE, _FINE), fatal=True
        )
        for front in ("", "stream ")
        for end in ("raise", "return tuple", "return two", "return []", "return int", "!send 2, return None")
    },
    **{
        f"stream sender: {steps}": Difference(_NO_END, _STREAMED)
        for steps in (
            "send, final, return None",
            "send, final, return [None]",
            "send, final, return",
            "send, send 2, final, return None",
            "later, send, final, return None",
            "later, send, send 2, final, return None",
        )
    },
    **kinds(
        {
            "error, error final, return None": 404,
            "!flag 2, return None": 500,
            "raise": 500,
            "return": 500,
            "return []": 500,
            "return [None]": 500,
            "later, send final, return int": 500,
        }
    ),
    "async decoupled execute: raise": Difference(_VANISHED, (_OK,), fatal=True),
}


def responses(success: int, fail: int, empty: int) -> dict[str, Any]:
    """Of one place in the streams."""
    computed = {"count": str(success + fail)} if success + fail else {}
    counts = {"success": success, "fail": fail, "empty_response": empty, "cancel": 0}
    figures = {name: {"count": str(count)} if count else {} for name, count in counts.items()}
    return {"compute_infer": computed, "compute_output": computed, **figures}


_STAGES = ("success", "queue", "compute_input", "compute_infer", "compute_output")
_FIGURES = {
    "name": "streamed",
    "version": "1",
    "last_inference": "1",
    "inference_count": "4",
    "execution_count": "5",
    "inference_stats": {
        **{stage: {"count": "4"} for stage in _STAGES},
        "fail": {"count": "1"},
        "cache_hit": {},
        "cache_miss": {},
    },
    "response_stats": {"0": responses(3, 1, 1), "1": responses(2, 0, 0), "2": responses(0, 0, 1)},
    "batch_stats": [{"batch_size": "1", **{stage: {"count": "5"} for stage in _STAGES[2:]}}],
}
STATISTICS = {
    "statistics of responses": Difference(
        _NO_FIGURES, (*[_OK] * 5, {"code": "OK", "response": {"model_stats": [_FIGURES]}})
    )
}
