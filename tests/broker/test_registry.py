"""What is known of models and versions: how a request finds one, who is ready, the index."""

import pytest

from protocol.errors import InvalidArgument, NotFound, Unavailable


def test_an_unknown_model_or_version_is_refused_with_tritons_text(bench):
    assert bench.error(bench.submit("nope")) == "Request for unknown model: 'nope' is not found"
    assert bench.error(bench.submit("m", 7)) == "Request for unknown model: 'm' version 7 is not found"


def test_a_request_without_a_version_means_the_highest_that_is_ready(make_bench):
    bench = make_bench()
    bench.load(versions=(1, 3))
    bench.bring_up()
    registry = bench.core.registry
    assert registry.signature("m", -1).version == 3
    assert registry.signature("m", 1).version == 1
    assert registry.ready_versions("m") == [1, 3]


def test_a_version_that_was_found_is_not_found_once_another_serves_or_it_does_not(make_bench):
    bench = make_bench()
    registry, known = bench.core.registry, set()
    for versions in ((1, 3), (1, 3, 5), (1, 4), (1,)):
        bench.load(versions=versions)
        for key in set(bench.alive) - known:
            bench.hello(key)
            bench.loaded(key)
        known |= set(bench.alive)
        for _ in range(2):
            assert registry.find("m", -1).version == max(versions)
            assert registry.find("m", 1) in registry.serving()
    with pytest.raises(Unavailable):
        registry.find("m", 4)


def test_a_version_that_loads_is_known_but_not_found_yet(make_bench):
    bench = make_bench()
    bench.load()
    registry = bench.core.registry
    with pytest.raises(Unavailable, match=r"^Request for unknown model: 'm' version 1 is not at ready state$"):
        registry.find("m", 1)
    with pytest.raises(NotFound, match=r"^Request for unknown model: 'm' has no available versions$"):
        registry.find("m", -1)
    assert registry.servable("m", 1) is None and registry.servable("m", -1) is None
    assert registry.loading() == ["m"]
    bench.bring_up()
    assert registry.servable("m", 1) is registry.servable("m", -1) is not None and registry.loading() == []


def test_the_readiness_of_what_was_never_known_is_an_error(bench):
    for model, version in (("nope", -1), ("m", 7)):
        with pytest.raises(NotFound):
            bench.core.registry.servable(model, version)


def test_of_a_model_without_a_version_to_load_it_is_the_versions_that_are_missing(bench):
    registry = bench.core.registry
    registry.add_failure("empty")
    with pytest.raises(NotFound, match=r"^Request for unknown model: 'empty' has no available versions$"):
        registry.find("empty", -1)
    with pytest.raises(NotFound, match=r"^Request for unknown model: 'empty' version 1 is not found$"):
        registry.find("empty", 1)
    assert registry.servable("empty", -1) is None


def test_the_index_is_sorted_and_names_what_could_not_be_read(bench):
    registry = bench.core.registry
    registry.add_name("z")
    registry.add_name("a", "there are two of them")
    assert registry.index(ready=False) == [
        ("a", -1, "UNAVAILABLE", "there are two of them"),
        ("m", 1, "READY", ""),
        ("z", -1, "", ""),
    ]
    assert registry.index(ready=True) == [("m", 1, "READY", "")]


@pytest.mark.parametrize("fail", ["add_name", "add_failure"])
def test_a_model_that_failed_is_not_forgotten(bench, fail):
    registry = bench.core.registry
    assert registry.all_loaded()
    getattr(registry, fail)("other")
    assert not registry.all_loaded() and registry.servable("m", -1) is not None


def test_statistics_are_of_ready_versions_only(make_bench):
    bench = make_bench()
    bench.load(versions=(2, 1))
    bench.bring_up()
    bench.load("loading")
    registry = bench.core.registry
    assert {(one.name, one.version) for one in registry.select("", -1)} == {("m", 1), ("m", 2)}
    assert [one.version for one in registry.select("m", -1)] == [1, 2]
    assert [one.version for one in registry.select("m", 2)] == [2]
    with pytest.raises(InvalidArgument, match=r"^requested model 'loading' is not available$"):
        registry.select("loading", -1)
    with pytest.raises(InvalidArgument, match=r"^requested model version is not available for model 'm'$"):
        registry.select("m", 3)
