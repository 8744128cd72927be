"""When a change in the repositories is a reason to load, and when to unload."""

from __future__ import annotations

from tensorbus.polling import Changes, Poller

NOTHING = Changes([], [])


def look(poller: Poller, **stamps: str) -> Changes:
    """At models that nobody writes at the moment."""
    return poller.look(stamps, stamps)


def test_what_was_there_at_the_start_is_no_change():
    assert look(Poller({"a": "1"}), a="1") == NOTHING


def test_what_is_new_or_other_is_loaded_and_what_has_gone_is_unloaded():
    poller = Poller({"a": "1", "b": "1"})
    assert look(poller, a="2", c="1") == Changes(["a", "c"], ["b"])
    for model in "ac":
        poller.ended(model)
    assert look(poller, a="2", c="1") == NOTHING
    assert look(poller, a="2", b="1", c="1") == Changes(["b"], [])


def test_a_name_that_occurs_twice_is_unloaded_and_loaded_when_it_is_one_again():
    poller = Poller({"a": "1"})
    assert look(poller, a="") == Changes([], ["a"])
    assert look(poller, a="") == NOTHING
    assert look(poller, a="2") == Changes(["a"], [])


def test_a_load_that_has_failed_is_tried_again_with_each_poll():
    poller = Poller({})
    assert look(poller, a="1") == Changes(["a"], [])
    assert look(poller, a="1") == NOTHING  # it is under way
    poller.ended("a", "broken")
    assert look(poller, a="1") == Changes(["a"], [], ("a",))


def test_that_a_load_has_failed_is_news_until_it_was_told():
    poller = Poller({})
    look(poller, a="1")
    assert poller.ended("a", "broken")
    assert look(poller, a="1").again == ("a",)
    assert not poller.ended("a", "broken")
    assert look(poller, a="1").again == ("a",)
    assert poller.ended("a", "broken otherwise")
    assert look(poller, a="2") == Changes(["a"], [], ())
    assert poller.ended("a", "broken otherwise")
    assert look(poller, a="2").again == ("a",)
    assert not poller.ended("a")
    assert look(poller, a="3") == Changes(["a"], [], ())
    assert poller.ended("a", "broken")


def test_what_has_failed_at_the_start_was_told_then():
    poller = Poller({"a": "1", "b": "1"})
    poller.try_again(["a"])
    assert look(poller, a="1", b="1") == Changes(["a"], [], ("a",))
    assert not poller.ended("a", "broken")
    assert look(poller, a="1", b="1") == Changes(["a"], [], ("a",))
    assert poller.ended("a", "broken otherwise")


def test_what_has_failed_is_unloaded_when_it_is_gone():
    poller = Poller({"a": "1"})
    assert look(poller, a="2") == Changes(["a"], [])
    poller.ended("a", "broken")
    assert look(poller) == Changes([], ["a"]) and look(poller) == NOTHING


def test_a_change_during_the_load_is_a_reason_for_the_next():
    poller = Poller({})
    assert look(poller, a="1") == Changes(["a"], [])
    assert look(poller, a="2") == NOTHING
    poller.ended("a")
    assert look(poller, a="2") == Changes(["a"], [])


def test_what_is_being_written_is_left_for_the_next_poll_but_not_for_ever():
    poller = Poller({})
    assert poller.look({}, {"a": "1"}) == NOTHING
    assert look(poller, a="1") == Changes(["a"], [])
    poller = Poller({})
    assert poller.look({"a": "1"}, {"a": "2"}) == NOTHING
    assert poller.look({"a": "3"}, {"a": "4"}) == Changes(["a"], [])


def test_what_is_being_loaded_is_not_tried_again_and_what_has_failed_is_not_news():
    poller = Poller({})
    assert look(poller, a="1") == Changes(["a"], [])
    poller.try_again(["a"])
    assert look(poller, a="1") == NOTHING
    poller.ended("a", "broken")
    poller.try_again(["a"])
    assert look(poller, a="1") == Changes(["a"], [], ("a",))
    assert not poller.ended("a", "broken")
