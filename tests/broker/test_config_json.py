"""The goldens are configurations and what Triton 2.51 (24.10) answers at /v2/models/<name>/config for them."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from google.protobuf import text_format

from broker.config_backend import complete_backend
from broker.config_instances import normalize_instance_groups
from broker.config_json import from_json, to_json
from broker.config_normalize import normalize
from broker.model_config import parse_text
from broker.proto import ModelConfigMessage
from protocol.errors import InvalidArgument

GOLDENS = Path(__file__).parent / "goldens" / "configs"
NAMES = sorted(path.stem for path in GOLDENS.glob("*.pbtxt"))


def loaded(name: str):
    message = parse_text((GOLDENS / f"{name}.pbtxt").read_bytes(), name)
    complete_backend(message, name, {"model.py": False})
    normalize(message)
    normalize_instance_groups(message)
    return message


def with_sorted_maps(text: str) -> str:
    """Triton prints maps in the order of its hash table, another one each time."""
    value = json.loads(text)
    for name in ("parameters", "metric_tags"):
        value[name] = dict(sorted(value[name].items()))
    return json.dumps(value)


@pytest.mark.parametrize("name", NAMES)
def test_a_configuration_is_printed_as_triton_prints_it(name):
    golden = (GOLDENS / f"{name}.json").read_text()
    printed = to_json(loaded(name))
    assert with_sorted_maps(printed) == with_sorted_maps(golden)
    if name not in ("parameters", "tags"):
        assert printed == golden


def test_model_metrics_are_printed_though_triton_2_51_does_not_know_them():
    message = ModelConfigMessage()
    options = "histogram_options { buckets: [1, 2.5, 1e3, 0.1, 123456789.125, 1e-7] }"
    text = f'model_metrics {{ metric_control {{ metric_identifier {{ family: "f" }} {options} }} }}'
    text_format.Parse(text, message)
    printed = json.loads(to_json(message))["model_metrics"]
    assert printed == {
        "metric_control": [
            {
                "metric_identifier": {"family": "f"},
                "histogram_options": {"buckets": [1, 2.5, 1000, 0.1, 123456789.125, 1e-7]},
            }
        ]
    }


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ("123456.7", "123456.703"),
        ("16777217", "16777216"),
        ("1e10", "10000000000.0"),
        ("1e20", "100000000000000000000.0"),
        ("1e21", "1e21"),
        ("1e30", "1e30"),
        ("1e-5", "0.00001"),
        ("1e-6", "0.000001"),
        ("1.5e-7", "1.5e-7"),
        ("0.1", "0.1"),
        ("-0.0", "0"),
        ("0.33333334", "0.333333343"),
        ("-0.25", "-0.25"),
        ("99999.99", "99999.9922"),
        ("inf", '"Infinity"'),
        ("-inf", '"-Infinity"'),
    ],
)
def test_a_float_is_printed_as_triton_prints_it(given, printed):
    control = parse_text(f"sequence_batching {{ direct {{ minimum_slot_utilization: {given} }} }}".encode(), "p")
    text = to_json(control.sequence_batching.direct)
    assert text == f'{{"max_queue_delay_microseconds":0,"minimum_slot_utilization":{printed}}}'


@pytest.mark.parametrize("name", NAMES)
def test_what_is_printed_can_be_read_back(name):
    message = loaded(name)
    assert from_json(to_json(message)) == message


def test_json_may_spell_names_both_ways_and_enums_in_any_case():
    message = from_json('{"maxBatchSize": 2, "input": [{"name": "A", "data_type": "type_fp32", "dims": ["3", 4]}]}')
    assert message.max_batch_size == 2
    assert list(message.input[0].dims) == [3, 4]
    assert to_json(message.input[0]).startswith('{"name":"A","data_type":"TYPE_FP32"')


@pytest.mark.parametrize(
    ("text", "size", "value"),
    [
        ('{max_batch_size: 3, "parameters": {a: {"string_value": "x"}}}', 3, "x"),
        ('{maxBatchSize \n : 3, "parameters": {"a": {"string_value": "k: [,]"}}}', 3, "k: [,]"),
        ("{'max_batch_size': 3, 'parameters': {'a': {'string_value': 'x\"y\\'z'}}}", 3, "x\"y'z"),
        (
            '{"max_batch_size": 3, "parameters": {"a": {"string_value": "\\q\\n\n",},}, "input": [{"name": "A"} , ]}',
            3,
            "q\n\n",
        ),
    ],
)
def test_json_may_be_as_loose_as_triton_takes_it(text, size, value):
    message = from_json(text)
    assert (message.max_batch_size, message.parameters["a"].string_value) == (size, value)


@pytest.mark.parametrize(
    "text",
    [
        '{"max_batch_size": 3 /* x */}',
        '{"max_batch_size": +3}',
        '{"max_batch_size": 03}',
        '{"dynamic_batching": {"preserve_ordering": True}}',
        '{"dynamic_batching": {,}}',
        '{"input": [,]}',
        '{"input": [ , ]}',
        '{"input": [{"name": "A"}, , ]}',
        '{"max_batch_size": 3,,}',
        '{,"max_batch_size": 3}',
        '{"max_batch_size": 3 "name": "m"}',
        '{"parameters": {a-b: {"string_value": "x"}}}',
        '{"parameters": {null: {"string_value": "x"}}}',
        '{"instance_group": [{"kind": KIND_CPU}]}',
        '{"max_batch_size": 3} x',
        "{'max_batch_size\": 3}",
    ],
)
def test_json_must_not_be_looser_than_triton_takes_it(text):
    with pytest.raises(InvalidArgument):
        from_json(text)


@pytest.mark.parametrize(
    "text", ["{" + "a" * 1_000_000, '"' + '\\"' * 500_000, "{" + "[ ," * 300_000, "," + " " * 1_000_000]
)
def test_it_takes_no_longer_the_looser_it_is(text):
    began = time.process_time()
    with pytest.raises(InvalidArgument):
        from_json(text)
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    "text", ['{"nonsense": 1}', '{"max_batch_size": "many"}', "{", "[]", '{"input": 3}', '{"input": [3]}', "[" * 100000]
)
def test_json_that_is_no_configuration_is_an_invalid_argument(text):
    with pytest.raises(InvalidArgument):
        from_json(text)
