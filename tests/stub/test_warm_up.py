"""What a model is given before it serves; whom its answers reach, nobody, is shown where servers run."""

from __future__ import annotations

import json
from typing import Any, Dict, List

import pytest
from _tensorbus_app.stub import event_loop, user_model, warm_up
from _tensorbus_app.stub.shared import errors

from tests.stub.conftest import Port

MODEL = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def initialize(self, args):
        self.seen = []
    def execute(self, requests):
        self.seen.append([[(t.name(), t.triton_dtype(), t.as_numpy().copy()) for t in r.inputs()] for r in requests])
        for request in requests:
            for tensor in request.inputs():
                if tensor.as_numpy().dtype != object:
                    tensor.as_numpy()[...] = 1
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""


NONE: Dict[str, bytes] = {}


@pytest.fixture
def warm(version_dir):
    """Warms a model with one input X up; returns what it was given, by execution, request and input."""
    directory = version_dir.parent
    (version_dir / "model.py").write_text(MODEL)

    def warm(*samples: Dict[str, Any], files: Dict[str, bytes] = NONE, **config: Any) -> List[Any]:
        for name, data in files.items():
            (directory / "warmup").mkdir(exist_ok=True)
            (directory / "warmup" / name).write_bytes(data)
        known = {"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}
        whole = {"name": "m", "max_batch_size": 0, "input": [known], "output": [], "model_warmup": samples, **config}
        model = user_model.UserModel.load(
            str(version_dir / "model.py"),
            {
                "model_config": json.dumps(whole),
                "model_instance_name": "m_0",
                "model_repository": str(directory),
                "model_version": "1",
                "model_name": "m",
            },
        )
        warm_up.warm_up(model, Port(), event_loop.EventLoop(), lambda *line: None)
        return model.instance.seen

    return warm


def sample(
    size: int = 1, count: int = 0, datatype: str = "FP32", dims: Any = (2,), name: str = "X", **data: Any
) -> Any:
    given = {"data_type": "TYPE_" + datatype, "dims": list(dims), **(data or {"zero_data": True})}
    return {"name": "s", "batch_size": size, "count": count, "inputs": {name: given}}


def test_samples_come_one_after_the_other_each_as_often_as_it_says(warm):
    seen = warm(sample(2, 3), sample(0), sample(), max_batch_size=4)
    assert [len(requests) for requests in seen] == [2, 2, 2, 1]
    assert warm() == []


def test_each_time_the_data_are_as_they_were(warm):
    """The model above writes into its inputs."""
    seen = [requests[0][0][2].tolist() for requests in warm(sample(1, 3, dims=(8,), random_data=True))]
    assert len(seen) == 3 and repr(seen[0]) == repr(seen[1]) == repr(seen[2])


@pytest.mark.parametrize("datatype", ["BOOL", "UINT8", "INT16", "UINT32", "INT64", "FP16", "FP32", "FP64", "STRING"])
@pytest.mark.parametrize("data", ["zero_data", "random_data"])
def test_every_datatype_can_be_warmed_up_with(warm, datatype, data):
    ((((_, _, array),),),) = warm(sample(datatype=datatype, dims=(2, 3), **{data: True}))
    assert array.shape == (2, 3)
    if datatype == "STRING":
        assert array.tolist() == [[b""] * 3] * 2
    elif data == "zero_data":
        assert not array.any()


def test_a_model_that_batches_gets_batches_of_one(warm):
    ((((_, _, array),),),) = warm(sample(dims=(2, 3)), max_batch_size=4)
    assert array.shape == (1, 2, 3)


def test_an_input_has_the_shape_that_the_model_sees(warm):
    known = {"name": "X", "data_type": "TYPE_FP32", "dims": [-1, 6], "reshape": {"shape": [-1, 2, 3]}}
    ((((_, _, array),),),) = warm(sample(dims=(4, 6)), input=[known])
    assert array.shape == (4, 2, 3)


def test_a_file_gives_as_many_bytes_as_are_needed(warm):
    data = b"abcdefghij"
    ((((_, _, array),),),) = warm(sample(datatype="UINT8", dims=(4,), input_data_file="f"), files={"f": data})
    assert array.shape == (4,)
    ((((_, _, array),),),) = warm(
        sample(datatype="STRING", dims=(2,), input_data_file="f"), files={"f": b"\2\0\0\0ab\0\0\0\0"}
    )
    assert array.tolist() == [b"ab", b""]
    with pytest.raises(
        user_model.LoadError, match="warmup setting expects 44 bytes, but the data provided from f only"
    ):
        warm(sample(dims=(11,), input_data_file="f"), files={"f": data})


def test_strings_that_are_none_fail_the_load(warm):
    with pytest.raises(
        user_model.LoadError, match=r"failed to run warmup sample 's': .*unexpected end of the elements"
    ) as error:
        warm(sample(datatype="STRING", dims=(2,), input_data_file="f"), files={"f": b"\7\0\0\0ab"})
    assert error.value.kind == errors.ErrorKind.INVALID_ARG


def test_control_inputs_come_from_the_sequence_alone(warm):
    control = {"name": "START", "control": [{"kind": "CONTROL_SEQUENCE_START", "int32_false_true": [0, 1]}]}
    given = sample()
    given["inputs"]["START"] = {"data_type": "TYPE_INT32", "dims": [1], "zero_data": True}
    ((inputs,),) = warm(given, sequence_batching={"control_input": [control]})
    assert [name for name, _, _ in inputs] == ["X", "START"]
