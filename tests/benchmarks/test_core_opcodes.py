"""Bytecodes of the core: the same in every run, and more for more work."""

from benchmarks.core_opcodes import measure


def test_a_request_costs_the_same_in_every_run():
    assert measure("0", 2) == measure("0", 2)


def test_an_ensemble_costs_more_than_its_models_alone():
    assert measure("e", 2).total() > 3 * measure("0", 2).total() / 2
