"""Lookups in what the broker has told: the texts and kinds of its own registry."""

from __future__ import annotations

import pytest

from gateway.catalogue import ModelCatalogue
from protocol.errors import ErrorKind, InvalidArgument, NotFound, ProtocolError, Unavailable
from protocol.services import Row
from tests.gateway.fake_bus import signature


def row(version: int, state: str = "READY", shared: bool = False) -> Row:
    return Row(version, state, signature("m")._replace(version=version) if state == "READY" else None, shared)


@pytest.fixture
def catalogue() -> ModelCatalogue:
    found = ModelCatalogue()
    rows = {"m": [row(3), row(1, shared=True), row(5, "LOADING")], "cold": [row(1, "UNAVAILABLE")]}
    found.replace({**rows, "bad": [Row(-1, "UNAVAILABLE")]})
    return found


def test_a_version_is_found_and_without_one_the_highest_that_is_ready(catalogue: ModelCatalogue) -> None:
    assert catalogue.signature("m", 1).version == 1
    assert catalogue.signature("m", -1).version == 3
    assert catalogue.versions("m") == [1, 3]


@pytest.mark.parametrize(
    "model, version, error, text",
    [
        ("nope", -1, NotFound, "'nope' is not found"),
        ("bad", -1, NotFound, "'bad' is not found"),
        ("m", 7, NotFound, "'m' version 7 is not found"),
        ("m", 5, Unavailable, "'m' version 5 is not at ready state"),
        ("cold", -1, NotFound, "'cold' has no available versions"),
    ],
)
def test_what_is_not_there_is_refused_as_the_broker_does_it(
    catalogue: ModelCatalogue, model: str, version: int, error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        catalogue.signature(model, version)
    assert str(caught.value) == f"Request for unknown model: {text}"


def test_in_namespaces_the_broker_says_what_a_name_means(catalogue: ModelCatalogue) -> None:
    catalogue.has_namespaces = True
    many = Row(-1, "UNAVAILABLE", error=(int(ErrorKind.INVALID_ARG), "There are 2"))
    none = Row(-1, "UNAVAILABLE", error=(int(ErrorKind.NOT_FOUND), "not in the map"))
    catalogue.update({"many": [many], "none": [none]})
    known = (("many", InvalidArgument, "There are 2"), ("none", NotFound, "not in the map"))
    for model, error, text in (*known, ("nope", InvalidArgument, "Request for unknown model: 'nope' is not found")):
        for ask in (catalogue.signature, catalogue.may_be_ready):
            with pytest.raises(error) as caught:
                ask(model, -1)
            assert str(caught.value) == text


def test_readiness_is_worth_asking_for_what_may_be_ready_alone(catalogue: ModelCatalogue) -> None:
    assert catalogue.may_be_ready("m", -1) and catalogue.may_be_ready("m", 1)
    assert not catalogue.may_be_ready("m", 5) and not catalogue.may_be_ready("cold", -1)
    assert not catalogue.may_be_ready("bad", -1), "it is known, but could not be loaded"
    for model, version in (("nope", -1), ("m", 7), ("bad", 1)):
        with pytest.raises(NotFound):
            catalogue.may_be_ready(model, version)


def test_what_has_changed_takes_the_place_of_what_was(catalogue: ModelCatalogue) -> None:
    catalogue.update({"m": [row(5)], "cold": []})
    assert catalogue.versions("m") == [5]
    with pytest.raises(NotFound, match="'cold' is not found"):
        catalogue.find("cold", -1)
    catalogue.replace({"n": [row(1)]})
    with pytest.raises(NotFound):
        catalogue.find("m", -1)
    catalogue.check()


def test_handles_go_only_where_it_is_known_that_memory_is_shared(catalogue: ModelCatalogue) -> None:
    assert catalogue.shares_memory("m", 1)
    assert not catalogue.shares_memory("m", 3) and not catalogue.shares_memory("m", 7)
    assert not catalogue.shares_memory("nope", 1)


def test_a_ready_version_without_a_signature_breaks_the_protocol(catalogue: ModelCatalogue) -> None:
    for change in (catalogue.update, catalogue.replace):
        with pytest.raises(ProtocolError, match="'m' is READY without a signature"):
            change({"m": [row(1), Row(2, "READY")], "cold": []})
    assert catalogue.versions("m") == [1, 3] and catalogue.find("m", 3)
