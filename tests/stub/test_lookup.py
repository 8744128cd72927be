from __future__ import annotations

import triton_python_backend_utils as pb_utils


def test_entries_of_a_configuration_are_found_by_name() -> None:
    config = {"input": [{"name": "A"}], "output": [{"name": "B"}]}
    assert pb_utils.get_input_config_by_name(config, "A") is config["input"][0]
    assert pb_utils.get_output_config_by_name(config, "B") is config["output"][0]
    assert pb_utils.get_input_config_by_name(config, "B") is None
    assert pb_utils.get_output_config_by_name({}, "B") is None


def test_decoupled_is_false_where_it_is_not_configured() -> None:
    decoupled = pb_utils.using_decoupled_model_transaction_policy
    assert decoupled({}) is False
    assert decoupled({"model_transaction_policy": {}}) is False
    assert decoupled({"model_transaction_policy": {"decoupled": True}}) is True
