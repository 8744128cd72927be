"""The way of one request through an ensemble: the order of steps, iterations, responses, and what memory is in use."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.ensemble import Memory, Part, Plan, Run, Step, Value
from protocol.errors import InvalidArgument
from protocol.messages import Handle, TensorRef
from tests.random_events import examples

PLAIN, STREAM = Part(0, False, (), ()), Part(0, True, (), ())


def step(reads: str, writes: str, part: Part = PLAIN) -> Step:
    """``reads`` and ``writes`` are the ensemble's names, one letter each; the model's are in capitals."""
    return Step("m", -1, tuple((one.upper(), one) for one in reads), tuple((one.upper(), one) for one in writes), part)


def plan(outputs: str, *steps: Step, max_inflight: int = 0) -> Plan:
    return Plan("e", steps, tuple(outputs), max_inflight)


class Bench:
    """Plays the models: a tensor's name says how it came about."""

    def __init__(self, plan: Plan, inputs: str, requested: str = "") -> None:
        self.run = Run(plan, list(requested))
        self.own = Memory("", 0)
        self.own.uses = 1
        self.memories = [self.own]
        self.unread: list[dict[str, Value]] = []
        self.responses: list[dict[str, str]] = []
        self.over = False
        self.last = self._take(self.run.begin({name: self.value(name, self.own) for name in inputs}))

    @staticmethod
    def value(name: str, memory: Memory) -> Value:
        return Value(TensorRef(name, "FP32", (1,), Handle("s", 0, 4)), None, memory)

    def _take(self, progress) -> list[str]:
        """The steps that were started, by what they were given."""
        self.run.check()
        self.unread += progress.responses
        self.responses += [{name: value.tensor.name for name, value in one.items()} for one in progress.responses]
        self.over = progress.over
        if self.over:
            self.end()
        return [" ".join(value.tensor.name for _, value in one.inputs) for one in progress.started]

    def answer(self, number: int, final: bool = True, without: str = "", empty: bool = False, mark: str = "") -> None:
        started = self.run.running[number]
        given = "".join(value.tensor.name for _, value in started.inputs)
        memory = Memory("stub", len(self.memories))
        memory.uses = 1
        self.memories.append(memory)
        names = [name for name, _ in self.run.plan.steps[started.step].outputs if name not in without and not empty]
        self.last = self._take(
            self.run.responded(
                number, {name: self.value(f"{name.lower()}({given}){mark}", memory) for name in names}, final
            )
        )
        if final:
            self.run.let_go(started)
        self.run.drop(memory)

    def end(self) -> None:
        self.run.end()
        self.run.drop(self.own)

    def read(self, which: int = 0) -> None:
        for value in self.unread.pop(which).values():
            if value.memory is not None:
                self.run.drop(value.memory)

    def alive(self) -> list[int]:
        """The positions of the memories that have not ended; none has ended twice."""
        counts = Counter(map(id, self.run.ended))
        assert all(count == 1 for count in counts.values()), "ended twice"
        return [index for index, memory in enumerate(self.memories) if id(memory) not in counts]


def test_a_chain_runs_step_by_step_and_ends_with_one_response():
    bench = Bench(plan("c", step("a", "b"), step("b", "c")), "a")
    assert bench.last == ["a"]
    bench.answer(1)
    assert (bench.last, bench.responses) == (["b(a)"], [])
    bench.answer(2)
    assert (bench.over, bench.responses) == (True, [{"c": "c(b(a))"}])


def test_independent_steps_run_together_and_the_step_that_joins_them_waits_for_both():
    bench = Bench(plan("d", step("a", "b"), step("a", "c"), step("bc", "d")), "a")
    assert bench.last == ["a", "a"]
    bench.answer(2)
    assert bench.last == []
    bench.answer(1)
    assert bench.last == ["b(a) c(a)"]


def test_steps_that_no_requested_output_needs_do_not_run():
    graph = plan("bd", step("a", "b"), step("a", "c"), step("c", "d"))
    bench = Bench(graph, "a", requested="b")
    assert bench.last == ["a"]
    bench.answer(1)
    assert (bench.over, bench.responses) == (True, [{"b": "b(a)"}])


def test_an_output_that_is_also_read_by_a_step_can_be_asked_for_alone():
    bench = Bench(plan("bc", step("a", "b"), step("b", "c")), "a", requested="b")
    bench.answer(1)
    assert bench.responses == [{"b": "b(a)"}]


def test_a_tensor_that_one_reader_has_may_be_written_to_and_one_that_several_have_may_not():
    bench = Bench(plan("cd", step("a", "b"), step("b", "c"), step("b", "d")), "a")
    assert [value.tensor.shared for _, value in bench.run.running[1].inputs] == [False]
    bench.answer(1)
    assert [value.tensor.shared for one in bench.run.running.values() for _, value in one.inputs] == [True, True]


def test_memory_is_in_use_until_the_last_step_that_reads_it_has_ended_and_its_response_was_read():
    bench = Bench(plan("bc", step("a", "b"), step("b", "c")), "a")
    bench.answer(1)
    assert bench.alive() == [0, 1]
    bench.answer(2)
    assert bench.alive() == [1, 2]  # the client has b and c
    bench.read()
    assert bench.alive() == []


def test_an_intermediate_tensor_goes_as_soon_as_its_reader_has_ended():
    bench = Bench(plan("d", step("a", "b"), step("b", "c"), step("c", "d")), "a")
    bench.answer(1)
    bench.answer(2)
    assert bench.alive() == [0, 2]


def test_what_nobody_reads_is_not_kept():
    bench = Bench(plan("c", step("a", "bx"), step("b", "c")), "a")
    bench.answer(1)
    assert bench.last == ["b(a)"]
    assert {name for name, _ in bench.run._kept} == set()


def test_an_output_that_a_step_does_not_give_is_an_absent_input_of_the_next():
    bench = Bench(plan("d", step("a", "bc"), step("bc", "d")), "a")
    bench.answer(1, without="C")
    assert bench.last == ["b(a)"]
    bench.answer(2, empty=True)
    assert (bench.over, bench.responses) == (True, [{}])


def test_every_response_of_a_decoupled_step_runs_what_follows():
    bench = Bench(plan("c", step("a", "b", STREAM), step("b", "c")), "a")
    bench.answer(1, final=False, mark="#1")
    bench.answer(1, final=False, mark="#2")
    bench.answer(3)
    assert bench.responses == [{"c": "c(b(a)#2)"}]
    bench.answer(1, empty=True)
    assert not bench.over
    bench.answer(2)
    assert (bench.over, bench.responses) == (True, [{"c": "c(b(a)#2)"}, {"c": "c(b(a)#1)"}])


def test_branches_of_a_stream_meet_by_iteration_whichever_comes_first():
    bench = Bench(plan("d", step("a", "b", STREAM), step("b", "c"), step("bc", "d")), "a")
    bench.answer(1, final=False, mark="#1")
    bench.answer(1, final=False, mark="#2")
    bench.answer(3)
    assert bench.last == ["b(a)#2 c(b(a)#2)"]


def test_a_stream_without_a_response_ends_with_none():
    bench = Bench(plan("c", step("a", "b", STREAM), step("b", "c")), "a")
    bench.answer(1, empty=True)
    assert (bench.over, bench.responses) == (True, [])


def test_no_more_requests_of_a_step_run_at_a_time_than_the_limit_allows():
    bench = Bench(plan("c", step("a", "b", STREAM), step("b", "c"), max_inflight=2), "a")
    for _ in range(4):
        bench.answer(1, final=False)
    assert sorted(bench.run.running) == [1, 2, 3]
    bench.answer(2)
    assert sorted(bench.run.running) == [1, 3, 4]
    bench.end()
    assert bench.run.running.keys() == {1, 3, 4}


def test_an_output_that_can_never_come_is_an_error():
    bench = Bench(plan("bx", step("a", "b")), "a")
    with pytest.raises(InvalidArgument, match=r"^unexpected deadlock, at least one output is not set"):
        bench.answer(1)


@st.composite
def graphs(draw):
    """Steps that read what others before them write, all of one stream: inputs "abc", then a letter for each output."""
    stream_at = draw(st.none() | st.just(0))
    tensors, letters = list("ab"), iter("cdefghijklmnop")
    steps: list[Step] = []
    for index in range(draw(st.integers(1, 6))):
        if index == 1 and stream_at == 0:
            tensors = tensors[2:]  # what follows reads the stream alone
        reads = "".join(draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=3, unique=True)))
        writes = "".join(next(letters) for _ in range(draw(st.integers(1, 2))))
        steps.append(step(reads, writes, STREAM if index == stream_at else PLAIN))
        tensors += writes
    written = [tensor for one in steps for _, tensor in one.outputs]
    outputs = draw(st.lists(st.sampled_from(written), min_size=1, max_size=3, unique=True))
    return plan("".join(outputs), *steps, max_inflight=draw(st.integers(0, 2)))


def expected(graph: Plan, tensor: str, mark: str) -> str:
    """How a tensor comes about."""
    for one in graph.steps:
        for _, name in one.outputs:
            if name == tensor:
                given = "".join(expected(graph, read, mark) for _, read in one.inputs)
                return f"{tensor}({given}){mark if one.part.decoupled else ''}"
    return tensor


@settings(max_examples=examples(500), deadline=None)
@given(graph=graphs(), data=st.data())
def test_whatever_the_graph_and_the_order_each_response_is_right_and_all_memory_ends_once(graph, data):
    bench = Bench(graph, "ab")
    sent = 0
    gives_up_after = data.draw(st.integers(0, 30))
    while not bench.over and gives_up_after:
        gives_up_after -= 1
        number = data.draw(st.sampled_from(sorted(bench.run.running)))
        if graph.steps[bench.run.running[number].step].part.decoupled:
            final = sent > 3 or data.draw(st.booleans())
            bench.answer(number, final, empty=final, mark="" if final else f"#{sent}")
            sent += not final
        else:
            bench.answer(number)
        if bench.unread and data.draw(st.booleans()):
            bench.read(data.draw(st.integers(0, len(bench.unread) - 1)))
    right = [{name: expected(graph, name, f"#{one}") for name in graph.outputs} for one in range(sent)]
    right = right if graph.decoupled else [{name: expected(graph, name, "") for name in graph.outputs}]
    assert all(one in right for one in bench.responses)
    if bench.over:
        assert sorted(map(str, bench.responses)) == sorted(map(str, right))
    else:
        bench.end()
        for started in list(bench.run.running.values()):
            bench.run.let_go(started)
    while bench.unread:
        bench.read()
    assert bench.alive() == []
