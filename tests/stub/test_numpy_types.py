from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils


def test_configuration_types_have_numpy_types() -> None:
    assert pb_utils.triton_string_to_numpy("TYPE_BOOL") is bool
    assert pb_utils.triton_string_to_numpy("TYPE_FP16") is np.float16
    assert pb_utils.triton_string_to_numpy("TYPE_STRING") is np.object_
    assert pb_utils.TRITON_STRING_TO_NUMPY["TYPE_UINT64"] is np.uint64
    with pytest.raises(KeyError):
        pb_utils.triton_string_to_numpy("TYPE_BF16")


def test_numbers_have_numpy_types_and_back() -> None:
    for number in range(1, 14):
        numpy_type = pb_utils.triton_to_numpy_type(number)
        assert pb_utils.numpy_to_triton_type(numpy_type) == number
        assert pb_utils.numpy_to_triton_type(np.dtype(numpy_type)) == number
    assert pb_utils.triton_to_numpy_type(14) is None


@pytest.mark.parametrize(
    ("numpy_type", "number"), [(np.bytes_, 13), (np.dtype("S4"), 13), (np.str_, None), (np.complex64, None)]
)
def test_other_types(numpy_type: Any, number: Any) -> None:
    assert pb_utils.numpy_to_triton_type(numpy_type) == number
