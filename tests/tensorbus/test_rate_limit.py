from tensorbus.rate_limit import RateLimit


def test_a_flood_is_cut_to_so_many_per_second_and_the_next_one_tells_how_many_were_dropped() -> None:
    limit = RateLimit(10)
    admitted = [limit.admit("failed", now=5.0 + i / 10_000) for i in range(5_000)]
    assert admitted == [0] * 10 + [None] * 4_990
    assert limit.admit("failed", now=6.0) == 4_990
    assert limit.admit("failed", now=6.1) == 0


def test_one_key_does_not_silence_another() -> None:
    limit = RateLimit(1)
    assert limit.admit(("failed", "a"), now=0.0) == 0
    assert limit.admit(("failed", "a"), now=0.1) is None
    assert limit.admit(("failed", "b"), now=0.1) == 0


def test_many_keys_do_not_grow_the_memory() -> None:
    limit = RateLimit(1)
    for i in range(5_000):
        limit.admit(i, now=0.0)
    assert len(limit._windows) <= 1024


def test_a_key_in_flood_survives_the_forgetting_of_quiet_ones() -> None:
    limit = RateLimit(1)
    for i in range(1_023):
        limit.admit(i, now=0.0)
    limit.admit("busy", now=1.5)
    limit.admit("new", now=1.6)
    assert limit.admit("busy", now=1.7) is None
