"""The module as its users meet it: all names, and a model under test without any server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import c_python_backend_utils
import numpy as np
import triton_python_backend_utils as pb_utils

ROOT = Path(__file__).parents[2]
SUM = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array + 1)]))
        return answers
"""
TEST = """
import numpy as np
import triton_python_backend_utils as pb_utils
from model import TritonPythonModel

tensor = pb_utils.Tensor("IN", np.arange(3, dtype=np.float32))
request = pb_utils.InferenceRequest(inputs=[tensor], requested_output_names=["OUT"], model_name="probe")
(response,) = TritonPythonModel().execute([request])
(output,) = response.output_tensors()
print(output.name(), output.as_numpy().tolist())
"""


def test_a_model_is_unit_tested_with_the_module_alone(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(SUM)
    (tmp_path / "try.py").write_text(TEST)
    run = subprocess.run(
        [sys.executable, tmp_path / "try.py"],
        env={"PYTHONPATH": str(ROOT / "stub/api")},
        capture_output=True,
        text=True,
    )
    assert (run.stdout, run.stderr) == ("OUT [1.0, 2.0, 3.0]\n", "")


def test_importing_it_takes_no_name_of_the_users(tmp_path: Path) -> None:
    code = "import sys, triton_python_backend_utils; print(sorted({m.split('.')[0] for m in sys.modules}))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ROOT / "stub/api")},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert run.stderr == ""
    for name in ("stub", "protocol", "shm", "gateway", "broker", "metrics", "tensorbus", "zmq", "msgpack"):
        assert f"'{name}'" not in run.stdout


def test_the_constants_are_the_originals() -> None:
    assert (pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END) == (
        1,
        2,
    )
    assert pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL == pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL == 1
    assert pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE == 2


def test_the_c_module_has_the_same_classes_and_a_few_more() -> None:
    assert c_python_backend_utils.Tensor is pb_utils.Tensor
    assert c_python_backend_utils.shared_memory.free_memory() > 0
    for name in ("InferenceTrace", "InferenceResponseSender", "ResponseIterator", "Metric", "MetricKind", "MemoryType"):
        assert isinstance(getattr(c_python_backend_utils, name), type)


def test_a_class_level_annotation_works_while_the_module_is_imported() -> None:
    class Holder:
        tensor: pb_utils.Tensor

    Holder.tensor = pb_utils.Tensor("A", np.zeros(1))
    assert Holder.tensor.name() == "A"
