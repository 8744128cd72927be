from __future__ import annotations

import json
from typing import Any

import pytest
import triton_python_backend_utils as pb_utils

FP32 = {"name": "A", "data_type": "TYPE_FP32", "dims": [4]}


def config(**fields: Any) -> Any:
    return pb_utils.ModelConfig(json.dumps({"name": "M", "max_batch_size": 0, "input": [], "output": [], **fields}))


def refusal(call: Any, *arguments: Any) -> str:
    with pytest.raises(ValueError) as caught:
        call(*arguments)
    return str(caught.value)


def test_the_dictionary_is_live() -> None:
    made = config()
    made.as_dict()["max_batch_size"] = 3
    assert json.loads(made.to_json())["max_batch_size"] == 3


def test_max_batch_size_may_grow_only() -> None:
    made = config(max_batch_size=4)
    made.set_max_batch_size(8)
    assert made.as_dict()["max_batch_size"] == 8
    assert refusal(made.set_max_batch_size, 2) == (
        "configuration specified max_batch_size 8, but in auto-complete-config function for model 'M' "
        "specified max_batch_size 2"
    )


def test_dynamic_batching_is_added_once() -> None:
    made = config()
    made.set_dynamic_batching()
    assert made.as_dict()["dynamic_batching"] == {}
    kept = config(dynamic_batching={"preferred_batch_size": [2]})
    kept.set_dynamic_batching()
    assert kept.as_dict()["dynamic_batching"] == {"preferred_batch_size": [2]}


@pytest.mark.parametrize("scheduler", ["sequence_batching", "ensemble_scheduling"])
def test_dynamic_batching_does_not_replace_another_scheduler(scheduler: str) -> None:
    assert refusal(config(**{scheduler: {}}).set_dynamic_batching) == (
        f"Configuration specified scheduling_choice as '{scheduler}', but auto-complete-config function for model 'M' "
        "tries to set scheduling_choice as 'dynamic_batching'"
    )


def test_new_inputs_and_outputs_are_appended() -> None:
    made = config()
    made.add_input({**FP32, "optional": True})
    made.add_output(FP32)
    assert made.as_dict()["input"] == [{**FP32, "optional": True}]
    assert made.as_dict()["output"] == [FP32]


def test_incomplete_entries_are_completed_in_place() -> None:
    entry = {"name": "A", "data_type": "TYPE_INVALID", "dims": [], "optional": False, "format": "FORMAT_NONE"}
    made = config(input=[entry])
    made.add_input(FP32)
    assert made.as_dict()["input"] == [{**entry, **FP32}]


@pytest.mark.parametrize("kind", ["input", "output"])
def test_missing_properties_are_named(kind: str) -> None:
    add = getattr(config(), "add_" + kind)
    where = "in auto-complete-config function for model 'M' is missing"
    assert refusal(add, {}) == f"{kind} {where} 'name' property."
    assert refusal(add, {"name": "A", "dims": [1]}) == f"{kind} 'A' {where} 'data_type' property."
    assert refusal(add, {"name": "A", "data_type": "TYPE_FP32"}) == f"{kind} 'A' {where} 'dims' property."


def test_unknown_properties_are_refused_first() -> None:
    start = "'A' in auto-complete-config function for model 'M' contains property other than 'name', 'data_type'"
    assert refusal(config().add_input, {"name": "A", "x": 1}) == f"input {start}, 'dims' and 'optional'."
    assert refusal(config().add_output, {"name": "A", "x": 1}) == f"output {start} and 'dims'."
    with pytest.raises(KeyError, match="name"):
        config().add_input({"x": 1})


@pytest.mark.parametrize("kind", ["input", "output"])
def test_contradictions_to_the_configuration_are_refused(kind: str) -> None:
    entry = {"name": "A", "data_type": "TYPE_FP32", "dims": [16], "optional": False}
    add = getattr(config(**{kind: [entry]}), "add_" + kind)
    assert refusal(add, {**FP32, "data_type": "TYPE_INT8"}) == (
        f"unable to load model 'M', configuration expects datatype TYPE_FP32 for {kind} 'A', model provides TYPE_INT8"
    )
    assert refusal(add, FP32) == (
        "model 'M', tensor 'A': the model expects dims [4] but the model configuration specifies dims [16]"
    )


def test_an_input_cannot_become_optional() -> None:
    made = config(input=[{**FP32, "optional": False}])
    assert refusal(made.add_input, {**FP32, "optional": True}) == (
        "model 'M', tensor 'A': the model expects optional True but the model configuration specifies optional False"
    )


def test_the_transaction_policy_is_set_once() -> None:
    made = config()
    made.set_model_transaction_policy({"decoupled": True})
    made.set_model_transaction_policy({"decoupled": True})
    assert made.as_dict()["model_transaction_policy"] == {"decoupled": True}
    assert refusal(made.set_model_transaction_policy, {"decoupled": False}) == (
        "trying to change decoupled property in auto-complete-config for model 'M', which is already set to 'True'."
    )
    assert refusal(made.set_model_transaction_policy, {"x": 1}) == (
        "model transaction property in auto-complete-config function for model 'M' contains property other than "
        "'decoupled'."
    )


def test_text_that_is_no_json_is_an_error() -> None:
    with pytest.raises(ValueError):
        pb_utils.ModelConfig("{")
