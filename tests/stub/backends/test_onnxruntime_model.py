from __future__ import annotations

import numpy as np
import pytest

from tests.stub.batch import side_by_side

onnx = pytest.importorskip("onnx", reason="the package onnx, which makes the models, is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the package onnxruntime is not installed")

TYPES = {"TYPE_FP32": 1, "TYPE_STRING": 8}


def write(path, *nodes, data_type="TYPE_FP32", more=()):
    """A graph of the nodes from X to Y; ``more`` has the names of further INT64 inputs."""
    h = onnx.helper
    inputs = [h.make_tensor_value_info("X", TYPES[data_type], ["N", "M"])]
    inputs += [h.make_tensor_value_info(name, onnx.TensorProto.INT64, ["N", 1]) for name in more]
    outputs = [h.make_tensor_value_info("Y", TYPES[data_type], None)]
    graph = h.make_graph(nodes, "graph", inputs, outputs)
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9), path / "model.onnx")


def node(kind, *inputs, **attributes):
    return onnx.helper.make_node(kind, inputs or ["X"], ["Y"], **attributes)


def config(data_type="TYPE_FP32", max_batch_size=8, more=(), output=(-1,), **of_output):
    inputs = [{"name": "X", "data_type": data_type, "dims": [-1]}]
    inputs += [{"name": name, "data_type": "TYPE_INT64", "dims": [1]} for name in more]
    outputs = [{"name": "Y", "data_type": data_type, "dims": list(output), **of_output}]
    return {"max_batch_size": max_batch_size, "input": inputs, "output": outputs}


@pytest.mark.parametrize(
    ("level", "name"),
    [(0, "ORT_ENABLE_ALL"), (-1, "ORT_ENABLE_BASIC"), (1, "ORT_ENABLE_EXTENDED"), (2, "ORT_DISABLE_ALL")],
)
def test_levels_of_optimization_are_those_of_the_original(load, tmp_path, level, name):
    write(tmp_path, node("Identity"))
    model = load("onnxruntime", **config(), optimization={"graph": {"level": level}})
    options = model.instance._session.get_session_options()
    assert options.graph_optimization_level == getattr(onnxruntime.GraphOptimizationLevel, name)


def test_parameters_are_options_of_the_session_and_of_its_runs(load, tmp_path):
    write(tmp_path, node("Identity"))
    given = {
        "intra_op_thread_count": "3",
        "inter_op_thread_count": "2",
        "execution_mode": "1",
        "enable_mem_arena": "0",
        "enable_mem_pattern": "0",
        "memory.enable_memory_arena_shrinkage": "cpu:0",
        "session.use_device_allocator_for_initializers": "1",
    }
    parameters = {key: {"string_value": text} for key, text in given.items()}
    instance = load("onnxruntime", **config(), parameters=parameters).instance
    options = instance._session.get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 2)
    assert options.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL
    assert (options.enable_cpu_mem_arena, options.enable_mem_pattern) == (False, False)
    assert options.get_session_config_entry("session.use_device_allocator_for_initializers") == "1"
    assert instance._run_options.get_run_config_entry("memory.enable_memory_arena_shrinkage") == "cpu:0"


def test_requests_of_one_shape_run_as_one(load, tmp_path):
    total = onnx.helper.make_node("ReduceSum", ["X"], ["sum"], keepdims=1)
    write(tmp_path, total, onnx.helper.make_node("Add", ["X", "sum"], ["Y"]))
    model = load("onnxruntime", **config())
    one, two, other = np.float32([[1, 2]]), np.float32([[10, 20], [30, 40]]), np.float32([[5, 6, 7]])
    results = model.execute({"X": one}, {"X": other}, {"X": two})
    assert results[0].tolist() == (one + 103).tolist()  # the sum is that of all rows of that shape
    assert results[1].tolist() == (other + 18).tolist()
    assert results[2].tolist() == (two + 103).tolist()


def test_without_batching_each_runs_by_itself(load, tmp_path):
    total = onnx.helper.make_node("ReduceSum", ["X"], ["sum"], keepdims=1)
    write(tmp_path, total, onnx.helper.make_node("Add", ["X", "sum"], ["Y"]))
    not_batching = config(max_batch_size=0)
    for kind in ("input", "output"):
        not_batching[kind][0]["dims"] = [-1, -1]
    results = load("onnxruntime", **not_batching).execute({"X": np.float32([[1]])}, {"X": np.float32([[2]])})
    assert [result.tolist() for result in results] == [[[2]], [[4]]]


def test_a_run_that_fails_fails_those_that_were_in_it(load, tmp_path):
    write(tmp_path, node("Gather", "X", "I", axis=1), more=["I"])
    model = load("onnxruntime", **config(more=["I"], output=[-1, 1]))
    good = {"X": np.float32([[1, 2]]), "I": np.int64([[1]])}
    bad = {"X": np.float32([[1, 2, 3]]), "I": np.int64([[9]])}
    fine, failed = model.execute(good, bad)
    assert fine.reshape(-1).tolist() == [2]
    assert failed.startswith("onnx runtime error 2: Non-zero status code returned while running Gather node.")


def test_rows_that_get_lost_are_an_error_of_a_joined_run_alone(load, tmp_path):
    write(tmp_path, node("Unique"))
    model = load("onnxruntime", **config(output=[1], reshape={"shape": []}))
    assert model.execute({"X": np.float32([[1, 2]])})[0].tolist() == [1, 2]
    failed = model.execute({"X": np.float32([[1, 2]])}, {"X": np.float32([[3, 4]])})
    assert failed == ["onnx runtime error 1: output 'Y' has shape [4] for a batch of 2"] * 2


def test_text_that_is_no_utf8_goes_in_but_not_out(load, tmp_path):
    write(tmp_path, node("Identity"), data_type="TYPE_STRING")
    model = load("onnxruntime", **config("TYPE_STRING"))
    text, bytes_ = np.array([["ä".encode(), b"b"]], dtype=object), np.array([[b"\xff", b"b"]], dtype=object)
    fine, failed = model.execute({"X": text}, {"X": bytes_})
    assert fine.tolist() == [["ä", "b"]]
    assert failed.startswith("onnx runtime error 1: 'utf-8' codec can't decode")


def test_a_batch_that_lies_in_one_piece_is_not_copied(load, tmp_path):
    class Spy:
        def run(self, names, inputs, options):
            self.seen = inputs["X"]
            return session.run(names, inputs, options)

    write(tmp_path, onnx.helper.make_node("Identity", ["X"], ["Y"]))
    model = load("onnxruntime", **config())
    session, spy = model.instance._session, Spy()
    model.instance._session = spy
    memory, tensors = side_by_side("X", 3)
    results = model.execute(*[{"X": tensor} for tensor in tensors])
    assert np.shares_memory(spy.seen, memory)
    assert np.array_equal(np.concatenate(results), memory)
