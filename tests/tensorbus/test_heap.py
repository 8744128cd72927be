from __future__ import annotations

from tensorbus.heap import HeapTrim, malloc_trim


def test_a_trim_is_due_once_when_large_calls_have_ceased() -> None:
    trim = HeapTrim()
    assert [trim.due(number) for number in (0, 0, 1, 1, 1, 1)] == [False, False, False, True, False, False]


def test_no_trim_is_due_while_large_calls_go_on() -> None:
    trim = HeapTrim()
    assert not any(trim.due(number) for number in range(1, 9))
    assert trim.due(8)


def test_trimming_harms_nothing() -> None:
    kept = [bytes(1 << 20) for _ in range(8)]
    del kept[::2]
    malloc_trim()
    assert all(block == bytes(1 << 20) for block in kept)
