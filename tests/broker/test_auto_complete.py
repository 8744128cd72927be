"""The goldens are configurations, what a model made of each, and what Triton 2.51 (24.10) then served."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker import auto_complete, config_loading
from broker.config_backend import complete_backend
from broker.config_json import to_json
from broker.config_normalize import normalize
from broker.model_config import from_message, parse_text
from protocol.errors import InvalidArgument

GOLDENS = Path(__file__).parent / "goldens" / "auto_complete"
NAMES = sorted(path.stem for path in GOLDENS.glob("*.pbtxt"))
SET_ASIDE = {"bad_field", "bad_type", "scheduler_dropped", "scheduler_swapped"}


def prepared(text: bytes, name: str = "m"):
    message = parse_text(text, name)
    complete_backend(message, name, {"model.py": False})
    normalize(message)
    return config_loading.prepare(from_message(message))


@pytest.mark.parametrize("name", NAMES)
def test_what_the_model_completed_is_taken_over_as_triton_does(name):
    config = prepared((GOLDENS / f"{name}.pbtxt").read_bytes(), name)
    answer = (GOLDENS / f"{name}.answer.json").read_text()
    merged = config_loading.finish(auto_complete.merge(config, answer))
    assert to_json(merged.message) == (GOLDENS / f"{name}.json").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_that_is_set_aside_is_explained(name):
    config = prepared((GOLDENS / f"{name}.pbtxt").read_bytes(), name)
    objection = auto_complete.objection(config, (GOLDENS / f"{name}.answer.json").read_text())
    assert bool(objection) == (name in SET_ASIDE)
    assert "\n" not in objection


def test_the_model_is_given_every_field_even_without_a_configuration():
    given = json.loads(auto_complete.request(prepared(b"")))
    assert (given["name"], given["max_batch_size"], given["input"], given["output"]) == ("m", 0, [], [])
    assert given["instance_group"][0]["name"] == "m"


def test_an_unchanged_answer_changes_nothing():
    config = prepared(b'max_batch_size: 4 dynamic_batching { } input [ { name: "A" data_type: TYPE_BF16 dims: 1 } ]')
    assert auto_complete.merge(config, auto_complete.request(config)) == config


def test_the_configuration_that_came_in_stays_as_it_was():
    config = prepared(b"")
    before = to_json(config.message)
    assert auto_complete.merge(config, '{"max_batch_size": 4, "dynamic_batching": {}}').max_batch_size == 4
    assert to_json(config.message) == before


def test_what_the_model_got_wrong_is_found_when_all_is_complete():
    merged = auto_complete.merge(prepared(b""), '{"max_batch_size": -1}')
    with pytest.raises(InvalidArgument, match=r"^'max_batch_size' must be non-negative value for m$"):
        config_loading.finish(merged)
