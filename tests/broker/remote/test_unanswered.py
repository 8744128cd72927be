"""Which requests may be sent again after a broker has died: those that certainly no stub has had."""

from __future__ import annotations

from broker.remote.unanswered import UnansweredRequests, Verdict

PATIENCE = 100


def test_what_no_stub_has_had_is_sent_again_once_every_host_has_said_what_it_holds():
    requests = UnansweredRequests(PATIENCE)
    requests.ask("g", [1, 2, 3], ["a", "b"], now=0)
    assert requests.verdicts({"a"}, 1) == []
    requests.handed([2])
    assert requests.verdicts({"a", "b", "new"}, 2) == [Verdict("g", [1, 3], [2])]
    assert requests.verdicts({"a", "b"}, 3) == []


def test_without_hosts_nothing_can_have_been_executed():
    requests = UnansweredRequests(PATIENCE)
    requests.ask("g", [1], [], now=0)
    assert requests.verdicts(set(), 0) == [Verdict("g", [1], [])]


def test_a_host_that_does_not_come_back_may_have_executed_all():
    requests = UnansweredRequests(PATIENCE)
    requests.ask("g", [1, 2], ["a", "b"], now=0)
    requests.handed([1])
    assert requests.verdicts({"a"}, PATIENCE - 1) == []
    assert requests.verdicts({"a"}, PATIENCE) == [Verdict("g", [], [1, 2])]


def test_to_who_comes_when_all_others_have_come_all_is_lost():
    requests = UnansweredRequests(PATIENCE)
    requests.handed([2])
    requests.close()
    requests.handed([3])
    requests.ask("g", [1, 2, 3], ["a"], now=0)
    assert requests.verdicts({"a"}, 0) == [Verdict("g", [], [1, 2, 3])]
    assert not requests._handed


def test_a_gateway_that_is_gone_is_told_nothing():
    requests = UnansweredRequests(PATIENCE)
    requests.ask("g", [1], ["a"], now=0)
    requests.forget("g")
    assert requests.verdicts({"a"}, PATIENCE) == []
