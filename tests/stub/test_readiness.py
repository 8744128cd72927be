"""What a model's ``is_ready`` may say and what becomes of it."""

import asyncio

import numpy as np
import pytest
from _tensorbus_app.stub.readiness import answer
from _tensorbus_app.stub.shared import messages

ASKED = messages.AskReady(messages.ASK_READY, 7)
NO_BOOLEAN = "is_ready() must return a boolean value"


class Model:
    def __init__(self, ready):
        self.ready = ready

    def is_ready(self):
        return self.ready


class Coroutine(Model):
    async def is_ready(self):
        await asyncio.sleep(0)
        return self.ready


class Raising:
    def __init__(self, error):
        self.error = error

    def is_ready(self):
        raise self.error


@pytest.mark.parametrize("kind", [Model, Coroutine])
@pytest.mark.parametrize("ready", [True, False])
def test_true_and_false_are_answers(kind, ready):
    assert answer(ASKED, kind(ready)) == messages.IsReady(messages.IS_READY, 7, ready, "")


@pytest.mark.parametrize("value", [1, 0, None, "yes", np.bool_(True), [True]])
@pytest.mark.parametrize("kind", [Model, Coroutine])
def test_nothing_but_a_boolean_will_do(kind, value):
    assert answer(ASKED, kind(value)) == messages.IsReady(messages.IS_READY, 7, False, NO_BOOLEAN)


def test_an_exception_is_told_as_any_other_of_the_model():
    told = answer(ASKED, Raising(ValueError("no weights")))
    assert not told.ready and told.error.startswith("ValueError: no weights\n\nAt:\n") and "is_ready" in told.error


def test_a_model_that_exits_is_not_ready():
    assert answer(ASKED, Raising(SystemExit(3))).error.startswith("SystemExit: 3")


def test_a_coroutine_runs_where_the_model_has_its_event_loop():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "run", None)
        loop = asyncio.new_event_loop()
        assert answer(ASKED, Coroutine(True), loop.run_until_complete).ready
        loop.close()
