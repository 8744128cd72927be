"""What the table of test_config_validation.py, one fault a row, does not show."""

from __future__ import annotations

import pytest

from broker.config_ensemble import check_ensemble
from broker.model_config import parse_text
from protocol.errors import InvalidArgument


def check(*steps: tuple[str, str], inputs: str = "X", outputs: str = "Y") -> None:
    """Each step is (tensors it reads, tensors it writes), one letter a tensor."""
    message = parse_text(b'name: "e" platform: "ensemble"', "config.pbtxt")
    for name in inputs:
        message.input.add(name=name)
    for name in outputs:
        message.output.add(name=name)
    message.ensemble_scheduling.SetInParent()
    for reads, writes in steps:
        message.ensemble_scheduling.step.add(
            model_name="m",
            input_map={f"IN{index}": name for index, name in enumerate(reads)},
            output_map={f"OUT{index}": name for index, name in enumerate(writes)},
        )
    check_ensemble(message)


def test_steps_may_be_listed_in_any_order():
    check(("BC", "Y"), ("A", "C"), ("A", "B"), ("X", "A"))


def test_an_input_may_be_read_twice_and_an_output_read_again():
    check(("X", "Y"), ("XY", "Z"), outputs="YZ")


def test_an_output_may_be_an_input():
    check(("X", "Y"), outputs="XY")


def test_a_step_may_not_write_an_input():
    with pytest.raises(InvalidArgument, match=r"^ensemble input 'X' can not appear in an output map of ensemble 'e'$"):
        check(("X", "X"), outputs="X")


def test_two_steps_that_wait_for_each_other_write_nothing():
    with pytest.raises(InvalidArgument) as refused:
        check(("XB", "A"), ("A", "BY"))
    assert str(refused.value).startswith("output 'Y' for ensemble 'e' is not written: at least one of its depending")


def test_a_tensor_that_nobody_reads_is_named():
    with pytest.raises(InvalidArgument, match=r"^ensemble tensor 'Q' is unused in ensemble 'e'$"):
        check(("X", "YQ"))
