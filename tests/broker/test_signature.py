from __future__ import annotations

import json

from broker import config_loading
from broker.config_normalize import normalize
from broker.model_config import from_message, parse_text
from broker.proto import ModelConfigMessage
from broker.signature import initialize_args, signature

TEXT = b"""name: "adder" backend: "python" max_batch_size: 8
input [ { name: "A" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "B" data_type: TYPE_STRING dims: [ -1 ] } ]
instance_group [ { count: 2 } ]
"""


def config():
    message = parse_text(TEXT, "config.pbtxt")
    normalize(message)
    return config_loading.finish(config_loading.prepare(from_message(message)))


def test_a_gateway_is_told_tensors_and_both_forms_of_the_configuration():
    told = signature(config(), 3, {"B": ("cat",)})
    assert (told.model, told.version, told.platform, told.max_batch_size, told.decoupled) == (
        "adder",
        3,
        "python",
        8,
        False,
    )
    assert [(spec.name, spec.datatype, spec.dims) for spec in told.inputs + told.outputs] == [
        ("A", "FP32", (16,)),
        ("B", "BYTES", (-1,)),
    ]
    assert told.labels == {"B": ("cat",)}
    assert json.loads(told.config_json)["instance_group"][0]["count"] == 2
    assert ModelConfigMessage.FromString(told.config_proto) == config().message


def test_a_stub_is_told_seven_strings():
    args = initialize_args(config(), config().instances[1], 3, "/models/adder")
    assert json.loads(args.pop("model_config"))["name"] == "adder"
    assert args == {
        "model_instance_kind": "CPU",
        "model_instance_name": "adder_0_1",
        "model_instance_device_id": "0",
        "model_repository": "/models/adder",
        "model_version": "3",
        "model_name": "adder",
    }
