from __future__ import annotations

import pytest

from stub.backends.pytorch.torch_names import places


def test_names_of_arguments_mean_those():
    assert places(["y", "x"], ["x", "y", "z"]) == {"y": 1, "x": 0}


def test_indices_count_from_zero():
    assert places(["INPUT__1", "INPUT__0"]) == {"INPUT__1": 1, "INPUT__0": 0}
    assert places(["INPUT__0", "mask__2"], ["x", "y", "mask"]) == {"INPUT__0": 0, "mask__2": 2}


def test_an_argument_may_look_like_an_index():
    assert places(["a__7"], ["a__7"]) == {"a__7": 0}


def test_otherwise_the_order_of_the_configuration_counts():
    assert places(["scores", "boxes"]) == {"scores": 0, "boxes": 1}
    assert places(["x", "INPUT__0"], ["x"]) == {"x": 0, "INPUT__0": 1}
    assert places([]) == {}


def test_two_names_for_one_are_refused():
    with pytest.raises(ValueError, match=r"^two of the names A__0, B__0 mean the same argument or result$"):
        places(["A__0", "B__0"])
