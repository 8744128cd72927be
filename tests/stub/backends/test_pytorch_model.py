from __future__ import annotations

import numpy as np
import pytest

from tests.stub.batch import side_by_side

torch = pytest.importorskip("torch", reason="the package torch is not installed")


class Total(torch.nn.Module):
    """Adds the sum of all that runs together."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x.sum()


class Alike(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Sum(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum()


def loaded(load, tmp_path, module, data_type="TYPE_FP32", **fields):
    torch.jit.script(module).save(str(tmp_path / "model.pt"))
    tensor = {"data_type": data_type, "dims": [-1]}
    return load(
        "pytorch",
        **{"max_batch_size": 8, "input": [{"name": "x", **tensor}], "output": [{"name": "Y", **tensor}], **fields},
    )


def test_requests_of_one_shape_run_as_one(load, tmp_path):
    model = loaded(load, tmp_path, Total())
    one, two, other = np.float32([[1, 2]]), np.float32([[3, 4], [5, 6]]), np.float32([[7]])
    results = model.execute({"x": one}, {"x": other}, {"x": two})
    assert [result.tolist() for result in results] == [(one + 21).tolist(), [[14]], (two + 21).tolist()]


def test_a_lone_request_is_not_copied(load, tmp_path):
    given = np.float32([[1, 2]])
    (result,) = loaded(load, tmp_path, Alike()).execute({"x": given})
    assert np.shares_memory(result, given)


def test_a_scalar_result_has_one_element(load, tmp_path):
    model = loaded(load, tmp_path, Sum(), max_batch_size=0)
    assert model.execute({"x": np.float32([1, 2])})[0].tolist() == [3]


def test_a_result_that_is_not_there_is_an_error(load, tmp_path):
    outputs = [{"name": "Y__1", "data_type": "TYPE_FP32", "dims": [-1]}]
    model = loaded(load, tmp_path, Alike(), output=outputs)
    tensor = model.instance._torch.ones(1)
    with pytest.raises(ValueError, match=r"^output 'Y__1' is number 1, but the model returns 1$"):
        model.instance._picked(tensor, "Y__1")


def test_a_batch_that_lies_in_one_piece_is_not_copied(load, tmp_path):
    memory, tensors = side_by_side("x", 3)
    model = loaded(load, tmp_path, Alike())
    results = model.execute(*[{"x": tensor} for tensor in tensors])
    assert all(np.shares_memory(result, memory) for result in results)
    assert np.array_equal(np.concatenate(results), memory)
    results = model.execute(*[{"x": tensor} for tensor in reversed(tensors)])
    assert not any(np.shares_memory(result, memory) for result in results)
    assert np.array_equal(np.concatenate(results), memory[::-1])
