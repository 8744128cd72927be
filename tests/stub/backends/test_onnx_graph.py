from __future__ import annotations

import pytest

from stub.backends.onnxruntime.onnx_graph import Graph, GraphTensor, check, complete, is_complete


def tensor(name, *dims, data_type="TYPE_FP32", optional=False):
    return GraphTensor(name, data_type, dims, optional)


def entry(name, *dims, data_type="TYPE_FP32", **fields):
    return {"name": name, "data_type": data_type, "dims": list(dims), **fields}


def config(inputs=(), outputs=(), max_batch_size=0, **fields):
    return {"name": "m", "max_batch_size": max_batch_size, "input": list(inputs), "output": list(outputs), **fields}


BATCHING = Graph([tensor("A", -1, 3)], [tensor("B", -1, 2)])
FIXED = Graph([tensor("A", 1, 3)], [tensor("B", -1, 2)])


def completed(graph, default=4, **fields):
    given = config(**fields)
    complete(given, graph, default)
    return given


# --- completion -------------------------------------------------------------------------------------------------


def test_a_graph_whose_first_dimensions_all_vary_batches():
    assert completed(BATCHING) == config([entry("A", 3)], [entry("B", 2)], 4, dynamic_batching={})


def test_any_other_does_not():
    assert completed(FIXED) == config([entry("A", 1, 3)], [entry("B", -1, 2)])


def test_a_maximum_that_is_given_is_kept():
    assert completed(BATCHING, max_batch_size=16)["max_batch_size"] == 16


@pytest.mark.parametrize("default, shape", [(1, [3]), (0, [-1, 3]), (-2, [-1, 3])])
def test_the_default_maximum_may_say_that_nothing_is_batched(default, shape):
    done = completed(BATCHING, default)
    assert done["max_batch_size"] == max(0, default)
    assert done["input"][0]["dims"] == shape
    assert "dynamic_batching" not in done


def test_a_scheduler_that_is_chosen_stays():
    assert "dynamic_batching" not in completed(BATCHING, sequence_batching={})
    assert completed(BATCHING, dynamic_batching={"preserve_ordering": True})["dynamic_batching"] == {
        "preserve_ordering": True
    }


def test_a_graph_that_cannot_batch_refuses_to():
    with pytest.raises(ValueError) as refused:
        completed(FIXED, max_batch_size=2)
    assert str(refused.value) == (
        "autofill failed for model 'm': model does not support batching while non-zero max_batch_size is specified"
    )


def test_scalars_are_one_element_and_batches_of_them_are_reshaped():
    done = completed(Graph([tensor("A", -1)], [tensor("B", -1)]))
    assert done["input"] == [entry("A", 1, reshape={"shape": []})]
    assert completed(Graph([tensor("A")], [tensor("B", 2)]))["input"] == [entry("A", 1)]


def test_entries_are_completed_one_by_one():
    given = {"inputs": [{"name": "A", "data_type": "TYPE_INVALID", "dims": [], "label": 1}], "outputs": [entry("B", 2)]}
    done = completed(BATCHING, max_batch_size=8, **given)
    assert done["input"] == [entry("A", 3, label=1)]
    assert done["output"] == [entry("B", 2)]


def test_what_is_given_is_not_changed_even_where_it_is_wrong():
    wrong = [entry("A", 7, data_type="TYPE_INT8"), {"name": "nosuch"}]
    assert completed(BATCHING, inputs=wrong, max_batch_size=1)["input"] == wrong


def test_a_configuration_is_complete_when_every_entry_has_type_and_dims():
    assert is_complete(config([entry("A", 3)], [entry("B", 2)]))
    assert not is_complete(config([entry("A", 3)]))
    assert not is_complete(config([entry("A")], [entry("B", 2)]))
    assert not is_complete(config([entry("A", 3)], [entry("B", 2, data_type="TYPE_INVALID")]))


def test_initializers_that_are_inputs_are_optional_where_they_can_be_said():
    fixed, varying = tensor("W", 3, optional=True), tensor("V", -1, 3, optional=True)
    graph = Graph([tensor("A", -1, 3), fixed, varying], [tensor("B", -1, 3)])
    assert completed(graph)["input"] == [entry("A", 3), entry("V", 3, optional=True)]
    graph = Graph([tensor("A", 2, 3), fixed], [tensor("B", 2, 3)])
    assert completed(graph)["input"] == [entry("A", 2, 3), entry("W", 3, optional=True)]


# --- checks -----------------------------------------------------------------------------------------------------


def refusal(graph, **fields):
    with pytest.raises(ValueError) as refused:
        check(config(**fields), graph)
    return str(refused.value)


def test_what_was_completed_is_right():
    for graph in (BATCHING, FIXED, Graph([tensor("A")], [tensor("B")]), Graph([tensor("A", -1)], [tensor("B", -1)])):
        check(completed(graph), graph)


def test_variable_dimensions_of_the_graph_may_be_fixed():
    check(config([entry("A", 5, 3)], [entry("B", 9, 2)]), Graph([tensor("A", -1, 3)], [tensor("B", -1, 2)]))


def test_outputs_may_be_left_out():
    check(config([entry("A", 3)], [entry("B", 2)], 1), Graph(BATCHING.inputs, [*BATCHING.outputs, tensor("C", 7)]))


def test_inputs_must_be_as_many():
    graph = Graph([tensor("A", 3), tensor("B", 3)], [tensor("C", 3)])
    text = "unable to load model 'm', configuration expects {} inputs, model provides 2"
    assert refusal(graph, inputs=[entry("A", 3)]) == text.format(1)
    assert refusal(graph, inputs=[entry("A", 3)] * 3) == text.format(3)
    graph.inputs.append(tensor("W", 3, optional=True))
    assert refusal(graph, inputs=[entry("A", 3), entry("W", 3)]) == text.format(2)


def test_optional_inputs_need_not_be_configured():
    graph = Graph([tensor("A", 3), tensor("W", 3, optional=True)], [])
    check(config([entry("A", 3)]), graph)
    check(config([entry("W", 3), entry("A", 3)]), graph)


def test_inputs_of_the_scheduler_count():
    sequence = {"control_input": [{"name": "START"}], "state": [{"input_name": "S"}]}
    graph = Graph([tensor(name, -1, 1) for name in ("A", "START", "S")], [])
    check(config([entry("A", 1)], max_batch_size=1, sequence_batching=sequence), graph)
    ragged = config([entry("A", 1)], max_batch_size=1, batch_input=[{"target_name": ["START", "S"]}])
    check(ragged, graph)


def test_unknown_names_are_told_with_those_that_are_known():
    graph = Graph([tensor("B", 3), tensor("A", 3)], [tensor("D", 3), tensor("C", 3)])
    inputs = [entry("A", 3), entry("B", 3)]
    assert refusal(graph, inputs=[entry("A", 3), entry("X", 3)]) == (
        "unexpected inference input 'X', allowed inputs are: A, B"
    )
    assert refusal(graph, inputs=inputs, outputs=[entry("X", 3)]) == (
        "unexpected inference output 'X', allowed outputs are: C, D"
    )


def test_data_types_must_agree():
    assert refusal(BATCHING, inputs=[entry("A", 3, data_type="TYPE_INT32")]) == (
        "unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'A', model provides TYPE_FP32"
    )


DIMS = [
    (1, [4], "the model expects shape [-1,3] but the model configuration specifies shape [-1,4]"),
    (
        1,
        [1, 3],
        "the model expects 2 dimensions (shape [-1,3]) but the model configuration specifies 3 dimensions (an initial "
        "batch dimension because max_batch_size > 0 followed by the explicit tensor shape, making complete shape "
        "[-1,1,3])",
    ),
    (
        0,
        [3],
        "the model expects 2 dimensions (shape [-1,3]) but the model configuration specifies 1 dimensions (shape [3])",
    ),
    (0, [2, 4], "the model expects shape [-1,3] but the model configuration specifies shape [2,4]"),
]


@pytest.mark.parametrize("max_batch_size, dims, text", DIMS)
def test_shapes_must_agree(max_batch_size, dims, text):
    said = refusal(BATCHING, inputs=[entry("A", *dims)], max_batch_size=max_batch_size)
    assert said == "model 'm', tensor 'A': " + text


def test_a_fixed_first_dimension_is_no_batch():
    assert refusal(FIXED, inputs=[entry("A", 3)], max_batch_size=1) == (
        "model 'm', tensor 'A': for the model to support batching the shape should have at least 1 dimension and the "
        "first dimension must be -1; but shape expected by the model is [1,3]"
    )


def test_a_reshape_is_what_the_graph_gets():
    reshaped = entry("A", 1, 3, reshape={"shape": [3]})
    check(config([reshaped], max_batch_size=1), BATCHING)
    assert "specifies shape [-1,4]" in refusal(
        BATCHING, inputs=[entry("A", 3, reshape={"shape": [4]})], max_batch_size=1
    )
