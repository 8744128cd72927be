"""Calls of a model to other models."""

import asyncio
import json
import multiprocessing
import threading

import numpy as np

ROW = np.array([1, 2, 3, 4], dtype=np.float32)


def texts(*elements):
    return np.array(elements, dtype=np.object_)


def numbers(*elements):
    return np.array(elements, dtype=np.int32)


def request(pb, model, inputs, outputs=(), **more):
    """``inputs`` are arrays, or tensors, by name."""
    tensors = [value if isinstance(value, pb.Tensor) else pb.Tensor(name, value) for name, value in inputs.items()]
    return pb.InferenceRequest(model_name=model, inputs=tensors, requested_output_names=list(outputs), **more)


def add_sub(pb, **more):
    return request(pb, **{"model": "add_sub", "inputs": {"INPUT0": ROW, "INPUT1": ROW}, **more})


def told(response):
    """Of an error its code is left out: it is another one in later releases."""
    if response.has_error():
        return {"error": response.error().message(), "outputs": len(response.output_tensors())}
    return {
        tensor.name(): [plain(element) for element in tensor.as_numpy().ravel()] for tensor in response.output_tensors()
    }


def plain(element):
    return element.decode() if isinstance(element, bytes) else element.item()


def called(model, inputs, outputs=(), **more):
    return lambda pb, _: told(request(pb, model, inputs, outputs, **more).exec())


def batched(rows):
    return called(
        "batched", {"INPUT0": np.ones((rows, 2), np.float32), "INPUT1": texts(*["x"] * rows).reshape(rows, 1)}
    )


def added(**more):
    return lambda pb, _: told(add_sub(pb, **more).exec())


def misbehaving(action):
    return called("misbehaving", {"ACTION": texts(action)})


def learned(**more):
    """What the model called learns of the request."""

    def probe(pb, _):
        response = request(pb, "request_facts", {"INPUT0": numbers(1)}, **more).exec()
        return told(response) if response.has_error() else json.loads(response.output_tensors()[0].as_numpy()[0])

    return probe


def stream(pb, *steps, **more):
    return request(pb, "responses", {"STEPS": texts(*steps)}, **more).exec(decoupled=True)


def streamed(*steps):
    return lambda pb, _: [told(response) for response in stream(pb, *steps)]


def single_as_stream(model, inputs, **more):
    return lambda pb, _: [told(response) for response in request(pb, model, inputs, **more).exec(decoupled=True)]


def replayed(pb, _):
    responses = stream(pb, "1", "2", "final")
    return [[told(response) for response in responses] for _ in range(3)]


def resumed(pb, _):
    responses = stream(pb, "1", "2", "3", "final")
    for response in responses:
        first = told(response)
        break
    second = told(next(responses))
    return [first, second, [told(response) for response in responses]]


def past_the_end(pb, _):
    responses = stream(pb, "1", "final")
    taken = [told(next(responses)), told(next(responses))]
    try:
        next(responses)
    except StopIteration:
        taken.append("StopIteration")
    return [taken, iter(responses) is responses]


def deleted_early(pb, _):
    responses = stream(pb, "1", "2", "3", "final")
    first = told(next(responses))
    del responses
    return [first, streamed("2")(pb, _)]


def several_streams(pb, _):
    started = [stream(pb, *steps) for steps in (("1", "2"), ("3",), ("final",))]
    return [[told(response) for response in responses] for responses in started]


def outlive(pb, _):
    """Tensors of a response that has gone, and of calls before others."""
    first = add_sub(pb).exec().output_tensors()[0]
    others = [add_sub(pb).exec().output_tensors()[1] for _ in range(3)]
    return [first.as_numpy().tolist(), [other.as_numpy().tolist() for other in others]]


def passed_on(pb, received):
    """The very tensor that came in, under its name."""
    tensor = received.inputs()[0]
    return told(request(pb, "echo", {"PROBE": pb.Tensor("IN_BYTES", tensor.as_numpy())}).exec())


def chained(pb, _):
    first = add_sub(pb).exec().output_tensors()
    again = {"INPUT0": pb.Tensor("INPUT0", first[0].as_numpy()), "INPUT1": pb.Tensor("INPUT1", first[1].as_numpy())}
    return told(request(pb, "add_sub", again).exec())


def same_request_again(pb, _):
    made = add_sub(pb)
    return [told(made.exec()), told(made.exec())]


def in_threads(pb, _):
    results = [None] * 8

    def call(number):
        results[number] = told(request(pb, "echo", {"IN_INT32": numbers(number)}).exec())

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def stream_in_a_thread(pb, _):
    result = []
    thread = threading.Thread(target=lambda: result.extend(streamed("1", "2", "final")(pb, _)))
    thread.start()
    thread.join()
    return result


def in_a_child(pb, _):
    """The answer comes through a pipe."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(False)
    child = context.Process(target=lambda: there.send(told(add_sub(pb).exec())))
    child.start()
    result = here.recv()
    child.join()
    return [result, child.exitcode]


async def gathered(pb):
    calls = [add_sub(pb).async_exec() for _ in range(3)]
    return [told(response) for response in await asyncio.gather(*calls)]


async def gathered_errors(pb):
    calls = [request(pb, "misbehaving", {"ACTION": texts(action)}).async_exec() for action in ("value_error", "error")]
    return [told(response) for response in await asyncio.gather(*calls)]


async def streamed_async(pb):
    responses = await request(pb, "responses", {"STEPS": texts("1", "2", "final")}).async_exec(decoupled=True)
    return [told(response) for response in responses]


def run(coroutine):
    return lambda pb, _: asyncio.run(coroutine(pb))


def code(pb, _):
    return repr(request(pb, "misbehaving", {"ACTION": texts("error_not_found")}).exec().error().code())


def facts_of_a_response(pb, _):
    response, failed = add_sub(pb).exec(), request(pb, "misbehaving", {"ACTION": texts("error")}).exec()
    tensor = response.output_tensors()[0]
    return [
        [type(response).__name__, response.has_error(), response.error() is None],
        [
            tensor.name(),
            tensor.shape(),
            str(tensor.as_numpy().dtype),
            tensor.is_cpu(),
            tensor.as_numpy().flags.writeable,
        ],
        [failed.has_error(), failed.output_tensors(), type(failed.error()).__name__],
    ]


def of_unread_outputs(pb, _):
    """In default mode, whatever the model called is."""
    return [told(response) for response in request(pb, "decoupled", {"INPUT0": numbers(5)}).exec(decoupled=True)]


SINGLE = {
    "add_sub": added(),
    "add_sub, one output": added(outputs=["OUTPUT1"]),
    "add_sub, both outputs": added(outputs=["OUTPUT1", "OUTPUT0"]),
    "add_sub, an unknown output": added(outputs=["SUM"]),
    "model name of bytes": added(model=b"add_sub"),
    "version": added(model_version=1),
    "unknown version": added(model_version=7),
    "version 0": added(model_version=0),
    "latest version by -1": added(model_version=-1),
    "unknown model": added(model="nobody"),
    "unknown model and version": added(model="nobody", model_version=3),
    "model without a name": added(model=""),
    "no inputs": added(inputs={}),
    "an input is missing": added(inputs={"INPUT0": ROW}),
    "an input too many": added(inputs={"INPUT0": ROW, "INPUT1": ROW, "INPUT2": ROW}),
    "an unknown input": added(inputs={"INPUT0": ROW, "INPUTX": ROW}),
    "another datatype": added(inputs={"INPUT0": ROW, "INPUT1": ROW.astype(np.float64)}),
    "another shape": added(inputs={"INPUT0": ROW, "INPUT1": ROW[:3]}),
    "with an id, another shape": added(inputs={"INPUT0": ROW, "INPUT1": ROW[:3]}, request_id="mine"),
    "with an id, no inputs": added(inputs={}, request_id="mine"),
    "a batch": batched(3),
    "a batch too large": batched(5),
    "a batch without its dimension": called("batched", {"INPUT0": ROW[:2], "INPUT1": texts("x")}),
    "optional input missing": called("optional", {"INPUT0": numbers(1, 2)}),
    "text": called("echo", {"IN_BYTES": texts("a", b"b", "grüße", "")}),
    "no elements": called("echo", {"IN_FP32": np.empty(0, np.float32)}),
    "halves and booleans": called("echo", {"IN_FP16": np.ones(2, np.float16), "IN_BOOL": np.array([True, False])}),
    "inputs of different kinds": called(
        "echo", {"IN_INT8": np.array([-1], np.int8), "IN_UINT64": np.array([2**64 - 1], np.uint64)}
    ),
    "decoupled model": called("responses", {"STEPS": texts("1")}),
    "model raises": called("misbehaving", {"ACTION": texts("value_error")}),
    "model returns an error": called("misbehaving", {"ACTION": texts("error")}),
    "model without execute": called("no_execute", {"INPUT0": numbers(1)}),
    "model that is not there any more": called("versions", {"INPUT0": numbers(1)}, model_version=2),
    "error keeps its code": code,
    "facts of a response": facts_of_a_response,
    **{
        f"model: {action}": misbehaving(action)
        for action in ("tuple", "too_many", "list_of_int", "error_empty", "no_outputs")
    },
    **{
        f"model: {action}": misbehaving(action)
        for action in ("one_of_two", "other_datatype", "other_shape", "unknown_output")
    },
    **{
        f"model: {action}": misbehaving(action)
        for action in ("scalar", "zero_size", "reverse_order", "objects", "exit", "deeper")
    },
    "outputs outlive the response": outlive,
    "an input passed on": passed_on,
    "a chain": chained,
    "the same request again": same_request_again,
    "preferred memory": lambda pb, _: added(preferred_memory=pb.PreferredMemory(pb.TRITONSERVER_MEMORY_CPU))(pb, _),
    "exec by position": lambda pb, _: [told(response) for response in add_sub(pb).exec(True)],
    "exec with None": lambda pb, _: add_sub(pb).exec(decoupled=None) and None,
    "exec with a text": lambda pb, _: add_sub(pb).exec(decoupled="yes") and None,
    "exec with a strange keyword": lambda pb, _: add_sub(pb).exec(timeout=3) and None,
}
LEARNED = {
    "learns nothing": learned(),
    "learns the id": learned(request_id="grüße/1"),
    "learns a correlation id": learned(correlation_id=2**40),
    "learns a correlation id of text": learned(correlation_id="sequence-1"),
    "learns flags": learned(flags=3, correlation_id=1),
    "learns flags without an id": learned(flags=1),
    "learns the timeout": learned(timeout=11000000000),
    "learns parameters": learned(parameters={"a": "x", "b": 3, "c": True, "d": -(2**40)}),
    "learns requested outputs": learned(outputs=["FACTS"]),
    "learns reserved parameters": learned(parameters={"priority": 1, "timeout": 5}),
    "learns a trace": lambda pb, received: learned(trace=received.trace())(pb, received),
}
STREAMS = {
    "stream of one": streamed("1"),
    "stream of one and the flag": streamed("1", "final"),
    "stream of two": streamed("1", "2"),
    "stream of three and the flag": streamed("3", "1", "2", "final"),
    "stream of none": streamed("final"),
    "stream of an error": streamed("error"),
    "stream of an error and the flag": streamed("error", "final"),
    "stream of an error between": streamed("1", "error", "2", "final"),
    "stream that raises": streamed("1", "raise"),
    "stream that raises at once": streamed("raise"),
    "stream of another model": of_unread_outputs,
    "stream of a model with one response": single_as_stream("add_sub", {"INPUT0": ROW, "INPUT1": ROW}),
    "stream of a model that fails": single_as_stream("misbehaving", {"ACTION": texts("value_error")}),
    "stream of a model that returns an error": single_as_stream("misbehaving", {"ACTION": texts("error")}),
    "stream of an unknown model": single_as_stream("nobody", {}),
    "stream of wrong inputs": single_as_stream("add_sub", {"INPUT0": ROW}),
    "stream of wrong inputs of a decoupled model": single_as_stream("responses", {"X": ROW}),
    "stream of one requested output": lambda pb, _: [
        told(response) for response in stream(pb, "2", "final", outputs=["OUT"])
    ],
    "stream again": replayed,
    "stream interrupted": resumed,
    "stream past its end": past_the_end,
    "stream deleted": deleted_early,
    "streams at once": several_streams,
    "iterator's public names": lambda pb, _: hasattr(stream(pb, "1"), "__len__"),
}
ELSEWHERE = {
    "in threads": in_threads,
    "stream in a thread": stream_in_a_thread,
    "in a child": in_a_child,
    "gathered": run(gathered),
    "gathered errors": run(gathered_errors),
    "stream awaited": run(streamed_async),
    "async_exec without a loop": lambda pb, _: add_sub(pb).async_exec(),
}
CONTROL = {
    "load where it is not allowed": lambda pb, _: pb.load_model("add_sub"),
    "unload where it is not allowed": lambda pb, _: pb.unload_model("add_sub"),
    "ready where loading is not allowed": lambda pb, _: [
        pb.is_model_ready("add_sub"),
        pb.is_model_ready("versions", "3"),
    ],
}
PROBES = {**SINGLE, **LEARNED, **STREAMS, **ELSEWHERE, **CONTROL}
