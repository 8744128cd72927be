"""How long an answer waits for the next. The loop itself runs in real processes: test_process.py."""

from protocol.messages import Executed
from stub.loop import Answers


def done(duration_ns: int, ended_ns: int) -> Executed:
    return Executed(1, 0, duration_ns, 0, False, [], ended_ns=ended_ns)


def test_quick_answers_wait_for_each_other():
    answers = Answers()
    assert not answers.would_wait_too_long(10**9)
    answers.add(done(50_000, 1))
    answers.add(done(50_000, 50_001))
    assert not answers.would_wait_too_long(250_001)
    assert answers.would_wait_too_long(250_002)
    assert len(answers.take()) == 2
    assert not answers.would_wait_too_long(10**9)


def test_no_answer_waits_for_a_batch_as_slow_as_the_last():
    answers = Answers()
    answers.add(done(400_000, 1))
    assert answers.would_wait_too_long(1)
