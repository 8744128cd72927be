"""Outputs of other models: read when no array over them is left."""

import gc
import os
import threading

import numpy as np
import pytest
from _tensorbus_app.stub import borrowed, calls


@pytest.fixture
def read(monkeypatch):
    read = []
    monkeypatch.setattr(calls, "read", lambda *lease: read.append(lease))
    return read


def test_a_lease_ends_with_the_last_root(read):
    roots = [np.ones(3), np.ones(4)]
    borrowed.hold("origin", 5, roots)
    view = roots.pop()[1:]
    roots.clear()
    assert read == []
    del view
    assert read == [("origin", 5)]


def test_a_lease_of_nothing_is_over_at_once(read):
    borrowed.hold("origin", 6, [])
    assert read == [("origin", 6)]


def test_nothing_is_left_of_leases_that_are_over(read):
    for lease in range(10):
        borrowed.hold("origin", lease, [np.ones(3)])
    gc.collect()
    assert len(read) == 10
    assert not borrowed._held


def test_roots_that_go_in_several_threads_at_once_end_the_lease_once(read):
    for lease in range(100):
        roots = [[np.ones(3)] for _ in range(4)]
        borrowed.hold("origin", lease, [root for (root,) in roots])
        threads = [threading.Thread(target=root.clear) for root in roots]
        del roots
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        del threads, thread
    assert sorted(read) == [("origin", lease) for lease in range(100)]


def test_copies_in_a_forked_process_mean_nothing(read):
    roots = [np.ones(3)]
    borrowed.hold("origin", 7, roots)
    child = os.fork()
    if not child:
        roots.clear()
        os._exit(len(read))
    assert os.waitpid(child, 0)[1] == 0
    roots.clear()
    assert read == [("origin", 7)]
