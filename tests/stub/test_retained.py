"""Inputs that the model keeps stay leased until the last view has gone."""

from __future__ import annotations

import gc
from typing import Any, Callable

import numpy as np
import pytest

Load = Callable[..., Any]


def keeping(expression: str) -> str:
    return f"""
import io
import threading
import numpy as np
class TritonPythonModel:
    def execute(self, requests):
        tensor = requests[0].inputs()[0]
        self.kept = {expression}
        return [pb_utils.InferenceResponse([])]
"""


INPUT = np.arange(12, dtype=np.float32)
VIEWS = [
    "requests",
    "requests[0]",
    "requests[0].inputs()",
    "tensor",
    "tensor.as_numpy()",
    "tensor.as_numpy()[1:]",
    "tensor.as_numpy()[1:][::2].T",
    "tensor.as_numpy().reshape(-1).view(np.uint8)",
    "tensor.as_numpy().view(np.matrix)",
    "np.asarray(tensor.as_numpy())",
    "np.broadcast_to(tensor.as_numpy(), (2, *tensor.shape()))",
    "np.lib.stride_tricks.as_strided(tensor.as_numpy(), (2,), (4,))",
    "memoryview(tensor.as_numpy())",
    'memoryview(tensor.as_numpy()).cast("B")[3:]',
    "memoryview(tensor.as_numpy()[1:])",
    "np.frombuffer(tensor.as_numpy(), np.uint8)",
    "tensor.as_numpy().ctypes",
    "tensor.as_numpy().flat",
    "iter(tensor.as_numpy())",
    "tensor.to_dlpack()",
    "np.from_dlpack(tensor)",
    "np.from_dlpack(tensor.as_numpy())",
    'pb_utils.Tensor.from_dlpack("B", tensor)',
    'pb_utils.Tensor("B", tensor.as_numpy())',
    'pb_utils.InferenceResponse([pb_utils.Tensor("B", tensor.as_numpy())])',
    "{'cycle': tensor.as_numpy()}",
    "lambda: tensor",
]


@pytest.mark.parametrize("shape", [(12,), (3, 4)])
@pytest.mark.parametrize("expression", VIEWS)
def test_any_view_keeps_the_input_until_it_goes(load: Load, expression: str, shape: Any) -> None:
    loaded = load(keeping(expression))
    response = loaded.infer({"IN": INPUT.reshape(shape)})
    assert response.retained
    assert loaded.session.delivery.retained
    assert loaded.session.delivery.retained.collect() == []
    loaded.model.instance.kept = None
    gc.collect()
    assert loaded.session.delivery.retained.collect() == [response.request]
    assert not loaded.session.delivery.retained
    assert loaded.session.delivery.retained.collect() == []


@pytest.mark.parametrize(
    "expression", ["tensor.as_numpy().copy()", "tensor.as_numpy() + 1", "tensor.shape()", "tensor.as_numpy().sum()"]
)
def test_what_was_computed_keeps_nothing(load: Load, expression: str) -> None:
    loaded = load(keeping(expression))
    assert loaded.infer({"IN": INPUT}).retained is False
    assert not loaded.session.delivery.retained


def test_decoded_elements_keep_nothing_but_their_tensor_does(load: Load) -> None:
    array = np.array([b"a", b"b"], object)
    assert load(keeping("tensor.as_numpy()")).infer({"IN": array}).retained is False
    loaded = load(keeping("tensor"))
    response = loaded.infer({"IN": array})
    assert response.retained
    loaded.model.instance.kept.as_numpy()
    assert loaded.session.delivery.retained.collect() == [response.request]


def test_bf16_bits_are_kept_by_the_tensor(load: Load) -> None:
    loaded = load(keeping("tensor.to_dlpack()"))
    assert loaded.infer({"IN": ("BF16", (1,), b"\x80\x3f")}).retained


def test_a_response_made_of_its_input_is_sent_and_keeps_nothing(load: Load) -> None:
    loaded = load("""
    class TritonPythonModel:
        def execute(self, requests):
            tensor = pb_utils.Tensor("OUT", requests[0].inputs()[0].as_numpy())
            return [pb_utils.InferenceResponse([tensor])]
    """)
    assert loaded.infer({"IN": INPUT}).retained is False


@pytest.mark.parametrize("statement", ["raise ValueError", "return 3", "raise SystemExit"])
def test_a_failed_batch_keeps_nothing(load: Load, statement: str) -> None:
    loaded = load(f"""
    class TritonPythonModel:
        def execute(self, requests):
            array = requests[0].inputs()[0].as_numpy()
            {statement}
    """)
    assert loaded.infer({"IN": INPUT}).retained is False


def test_a_kept_exception_keeps_what_its_frames_hold(load: Load) -> None:
    loaded = load("""
    class TritonPythonModel:
        def execute(self, requests):
            array = requests[0].inputs()[0].as_numpy()
            self.kept = ValueError("boom")
            raise self.kept
    """)
    response = loaded.infer({"IN": INPUT})
    assert response.retained
    loaded.model.instance.kept = None
    gc.collect()
    assert loaded.session.delivery.retained.collect() == [response.request]


def test_the_sender_alone_keeps_nothing(load: Load) -> None:
    assert load(keeping("requests[0].get_response_sender()")).infer({"IN": INPUT}).retained is False


def test_a_request_is_released_when_the_last_of_its_inputs_goes(load: Load) -> None:
    loaded = load(keeping("[tensor.as_numpy() for tensor in requests[0].inputs()]"))
    response = loaded.infer({"A": INPUT, "B": INPUT, "C": np.zeros(0, np.float32)})
    kept = loaded.model.instance.kept
    kept.pop(0)
    assert loaded.session.delivery.retained.collect() == []
    kept.pop(0)
    assert loaded.session.delivery.retained.collect() == [response.request]


def test_each_request_of_a_batch_is_kept_by_itself(load: Load) -> None:
    loaded = load("""
    class TritonPythonModel:
        def execute(self, requests):
            self.kept = requests[1].inputs()[0].as_numpy()
            return [pb_utils.InferenceResponse([]) for _ in requests]
    """)
    executed = loaded.execute(*(loaded.request({"IN": INPUT}) for _ in range(3)))
    assert [response.retained for response in executed.responses] == [False, True, False]


def test_the_previous_input_stays_right_while_it_is_kept(load: Load) -> None:
    loaded = load("""
    class TritonPythonModel:
        def execute(self, requests):
            previous = getattr(self, "x", None)
            self.x = requests[0].inputs()[0].as_numpy()
            out = self.x if previous is None else previous
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", out)])]
    """)
    first = loaded.infer({"IN": np.ones(3, np.float32)})
    second = loaded.infer({"IN": np.full(3, 2, np.float32)})
    assert loaded.outputs(second)[0].array.tolist() == [1, 1, 1]
    assert (first.retained, second.retained) == (True, True)
    assert loaded.session.delivery.retained.collect() == [first.request]


def test_the_mapping_cannot_be_closed_under_an_array(load: Load) -> None:
    loaded = load(keeping("tensor.as_numpy()"))
    loaded.infer({"IN": INPUT})
    with pytest.raises(BufferError):  # what an exported buffer means to mmap.close(), too
        loaded.memory.blocks[0].clear()
