from __future__ import annotations

import pytest

from broker.model_config import InstanceSpec, Scheduler, VersionPolicy, from_message, parse_text
from protocol.errors import InternalError
from protocol.signature import TensorSpec


def config(text: str):
    return from_message(parse_text(text.encode(), "config.pbtxt"))


@pytest.mark.parametrize(
    "text",
    [
        "nonsense: 1",
        "max_batch_size: four",
        "max_batch_size: 99999999999",
        "max_batch_size: 1 max_batch_size: 2",
        "input { data_type: FP32 }",
        'name: "unterminated',
        'name: "\\xff"',
        "dynamic_batching { } sequence_batching { }",
        'input [ { name: "a" }, ]',
    ],
)
def test_a_malformed_file_is_named_and_nothing_else(text):
    with pytest.raises(InternalError, match=r"^failed to read text proto from /r/m/config\.pbtxt$"):
        parse_text(text.encode(), "/r/m/config.pbtxt")


def test_a_file_that_is_not_utf8_is_malformed():
    with pytest.raises(InternalError):
        parse_text(b'name: "\xff"', "config.pbtxt")


def test_tensors_carry_wire_datatypes_and_what_the_model_sees():
    read = config(
        'input [ { name: "A" data_type: TYPE_STRING dims: [ -1 ] optional: true allow_ragged_batch: true } ]'
        'output [ { name: "B" data_type: TYPE_BF16 dims: [ 2, 3 ] reshape { shape: [ 6 ] } label_filename: "l.txt" } ]'
    )
    assert read.inputs == (TensorSpec("A", "BYTES", (-1,), optional=True, ragged=True),)
    assert read.outputs == (TensorSpec("B", "BF16", (2, 3), reshape=(6,)),)
    assert read.label_files == {"B": "l.txt"}


def test_an_empty_reshape_is_a_scalar_and_not_no_reshape():
    read = config('input [ { name: "A" data_type: TYPE_INT32 dims: [ 1 ] reshape { } } ]')
    assert read.inputs[0].reshape == ()


@pytest.mark.parametrize(
    ("text", "scheduler"),
    [
        ("", Scheduler.NONE),
        ("dynamic_batching { }", Scheduler.DYNAMIC),
        ("sequence_batching { }", Scheduler.SEQUENCE),
        ("ensemble_scheduling { }", Scheduler.ENSEMBLE),
    ],
)
def test_the_scheduling_choice_is_known(text, scheduler):
    assert config(text).scheduler is scheduler


def test_every_gpu_of_a_group_gets_its_count_of_instances():
    read = config('instance_group [ { name: "g" kind: KIND_GPU gpus: [ 0, 2 ] count: 2 passive: true } ]')
    assert read.instances == (
        InstanceSpec("g_0", "GPU", 0, True),
        InstanceSpec("g_0", "GPU", 2, True),
        InstanceSpec("g_1", "GPU", 0, True),
        InstanceSpec("g_1", "GPU", 2, True),
    )


def test_the_rest_is_taken_over_as_it_is():
    read = config(
        'backend: "python" max_batch_size: 8 response_cache { enable: true }'
        "model_transaction_policy { decoupled: true }"
        'parameters { key: "k" value { string_value: "v" } } metric_tags { key: "t" value: "u" }'
    )
    assert (read.backend, read.max_batch_size, read.decoupled, read.response_cache) == ("python", 8, True, True)
    assert (read.parameters, read.metric_tags) == ({"k": "v"}, {"t": "u"})
    assert read.default_model_filename == "model.py"


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        (VersionPolicy(latest=1), [10]),
        (VersionPolicy(latest=2), [2, 10]),
        (VersionPolicy(latest=9), [0, 2, 10]),
        (VersionPolicy(latest=0), []),
        (VersionPolicy(), [0, 2, 10]),
        (VersionPolicy(specific=(10, 3, 0)), [0, 10]),
    ],
)
def test_a_version_policy_chooses_by_number(policy, chosen):
    assert policy.choose({2, 10, 0}) == chosen
