"""What a batch comes to, where the model behaves."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np
import pytest
from _tensorbus_app.stub.numpy_types import DTYPE
from _tensorbus_app.stub.shared import messages

Load = Callable[..., Any]

ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]))
        return answers
"""


def returning(expression: str) -> str:
    return f"""
import numpy as np
class TritonPythonModel:
    def execute(self, requests):
        return {expression}
"""


ONES = 'pb_utils.Tensor("{}", np.ones(2, np.float32))'


@pytest.mark.parametrize("datatype", sorted(DTYPE))
@pytest.mark.parametrize("shape", [(6,), (2, 3), (), (0, 3)])
def test_each_numeric_datatype_goes_in_and_out(load: Load, datatype: str, shape: Any) -> None:
    array = np.ones(shape, DTYPE[datatype])
    loaded = load(ECHO)
    (output,) = loaded.outputs(loaded.infer({"IN": array}))
    assert (output.name, output.datatype, output.shape) == ("OUT", datatype, shape)
    assert output.data == array.tobytes()


def test_bytes_go_in_and_out_element_by_element(load: Load) -> None:
    elements = [b"a\x00", b"", b"\x00", b"abc\x00def", "é漢".encode(), bytes(range(256))]
    loaded = load(ECHO)
    (output,) = loaded.outputs(loaded.infer({"IN": np.array(elements, object).reshape(3, 2)}))
    assert (output.datatype, output.shape, output.array.ravel().tolist()) == ("BYTES", (3, 2), elements)


@pytest.mark.parametrize("datatype", [*sorted(DTYPE), "BF16", "BYTES"])
def test_what_comes_with_the_message_is_the_models_own(load: Load, datatype: str) -> None:
    """It may write to it and keep it, and the server need not be told when it lets go."""
    loaded = load("""
    kept = []
    class TritonPythonModel:
        def execute(self, requests):
            kept.append(requests[0].inputs()[0])
            if kept[0].triton_dtype() < 13:
                kept[0].as_numpy()[1:] = kept[0].as_numpy()[:1]
            return [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", kept[0])
                    if kept[0].triton_dtype() != 13 else pb_utils.Tensor("OUT", kept[0].as_numpy())])]
    """)
    itemsize = DTYPE[datatype].itemsize if datatype in DTYPE else {"BF16": 2, "BYTES": 5}[datatype]
    data = bytes(itemsize) + b"\1" * itemsize
    if datatype == "BYTES":
        data = b"\1\0\0\0x" * 2
    message = messages.Request(1, "probe", 1, [messages.TensorRef("IN", datatype, (2,), data)])
    executed = loaded.session.execute(messages.Batch(7, [message]), lambda tensor: tensor.place, [])
    (response,) = executed.responses
    (output,) = loaded.outputs(response)
    assert output.data == (2 * data[:itemsize] if datatype in DTYPE else data)
    assert not response.retained


def test_bf16_goes_through_by_dlpack(load: Load) -> None:
    loaded = load("""
    class TritonPythonModel:
        def execute(self, requests):
            tensor = requests[0].inputs()[0]
            return [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", tensor)])]
    """)
    (output,) = loaded.outputs(loaded.infer({"IN": ("BF16", (1,), b"\x80\x3f")}))
    assert (output.datatype, output.shape, output.data) == ("BF16", (1,), b"\x80\x3f")


def test_each_request_of_a_batch_gets_its_own_answer(load: Load) -> None:
    loaded = load(ECHO)
    requests = [loaded.request({"IN": np.full(3, number, np.int32)}) for number in range(4)]
    executed = loaded.execute(*requests)
    assert (executed.batch, executed.failed) == (7, False)
    assert [response.request for response in executed.responses] == [request.id for request in requests]
    assert [loaded.outputs(response)[0].array[0] for response in executed.responses] == [0, 1, 2, 3]


def test_durations_are_those_of_input_user_code_and_output(load: Load) -> None:
    executed = load(ECHO).execute()
    assert (executed.input_ns, executed.infer_ns, executed.output_ns) == (1, 1, 1)


def test_outputs_that_were_not_asked_for_are_dropped_and_missing_ones_are_missing(load: Load) -> None:
    tensors = ", ".join(ONES.format(name) for name in "ABX")
    loaded = load(returning(f"[pb_utils.InferenceResponse([{tensors}])]"), outputs=("A", "B", "C"))
    assert [output.name for output in loaded.outputs(loaded.infer({}))] == ["A", "B"]
    assert [output.name for output in loaded.outputs(loaded.infer({}, outputs=["B", "C"]))] == ["B"]
    nothing = loaded.infer({}, outputs=["C"])
    assert (nothing.outputs, nothing.lease, nothing.error) == ([], 0, None)


def test_outputs_keep_their_order_and_duplicates_are_delivered(load: Load) -> None:
    tensors = ", ".join(ONES.format(name) for name in "BAB")
    loaded = load(returning(f"[pb_utils.InferenceResponse([{tensors}])]"), outputs=("A", "B"))
    assert [output.name for output in loaded.outputs(loaded.infer({}))] == ["B", "A", "B"]


def test_outputs_are_not_compared_with_the_configuration(load: Load) -> None:
    loaded = load(returning('[pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros((2, 3), np.int64))])]'))
    (output,) = loaded.outputs(loaded.infer({}))
    assert (output.datatype, output.shape) == ("INT64", (2, 3))


def test_one_response_may_answer_two_requests(load: Load) -> None:
    loaded = load(returning(f"[pb_utils.InferenceResponse([{ONES.format('OUT')}])] * 2"))
    executed = loaded.execute(loaded.request({}), loaded.request({}))
    assert [len(loaded.outputs(response)) for response in executed.responses] == [1, 1]
    assert executed.responses[0].lease != executed.responses[1].lease


def test_an_error_is_of_one_request_and_keeps_its_code_and_text(load: Load) -> None:
    loaded = load("""
    class TritonPythonModel:
        def execute(self, requests):
            error = pb_utils.TritonError("bad", pb_utils.TritonError.INVALID_ARG)
            return [pb_utils.InferenceResponse([]), pb_utils.InferenceResponse(error=error)]
    """)
    executed = loaded.execute(loaded.request({}), loaded.request({}))
    assert executed.failed is False
    assert [response.error for response in executed.responses] == [None, (3, "bad")]
    assert loaded.logs == []


def test_response_parameters_travel(load: Load) -> None:
    loaded = load(returning('[pb_utils.InferenceResponse([], parameters={"a": 1, "b": True})]'))
    assert loaded.infer({}).parameters == {"a": 1, "b": True}


def test_a_request_tells_what_the_client_sent(load: Load) -> None:
    loaded = load(
        """
        class TritonPythonModel:
            def execute(self, requests):
                (r,) = requests
                self.seen = (r.request_id(), r.correlation_id(), r.flags(), r.timeout(), r.parameters(),
                             r.requested_output_names(), r.inputs()[0].name(), r.is_cancelled())
                self.same = (r.get_response_sender() is r.get_response_sender(), r.inputs()[0] is r.inputs()[0],
                             pb_utils.get_input_tensor_by_name(r, "OTHER"))
                return [pb_utils.InferenceResponse([])]
        """,
        outputs=("A", "B"),
    )
    parameters = {"a": "é", "b": 3, "c": True, "d": 1.5}
    loaded.infer(
        {"IN": np.zeros(1, np.float32)},
        request_id="r",
        correlation_id="c",
        flags=1,
        timeout_us=11000000000,
        parameters=parameters,
    )
    instance = loaded.model.instance
    text = '{"a":"é","b":3,"c":true,"d":1.5}'
    assert instance.seen == ("r", "c", 1, 11000000000, text, {"A", "B"}, "IN", False)
    assert instance.same == (True, True, None)
    loaded.infer({"IN": np.zeros(1, np.float32)}, outputs=["B"])
    assert instance.seen[4:6] == ("{}", {"B"})


def test_execute_may_change_its_list_and_its_inputs(load: Load) -> None:
    loaded = load("""
    class TritonPythonModel:
        def execute(self, requests):
            answers = []
            while requests:
                array = requests.pop(0).inputs()[0].as_numpy()
                array += 1
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]))
            return answers
    """)
    executed = loaded.execute(*(loaded.request({"IN": np.full(1, number, np.int8)}) for number in (1, 2)))
    assert [loaded.outputs(response)[0].array[0] for response in executed.responses] == [2, 3]


def test_a_list_subclass_is_a_list(load: Load) -> None:
    loaded = load(returning('type("L", (list,), {})([pb_utils.InferenceResponse([])])'))
    assert loaded.infer({}).error is None


def test_finalize_is_called_and_may_fail(load: Load) -> None:
    assert load(ECHO).session.finalize() == ""
    failing = load("""
    class TritonPythonModel:
        def finalize(self):
            undefined_variable
    """)
    assert failing.session.finalize().startswith("NameError: name 'undefined_variable' is not defined\n\nAt:\n")


def test_a_model_runs_its_unit_tests_inside_execute(load: Load) -> None:
    """The original's own models do so: ``import model`` and an empty argv are for that."""
    loaded = load("""
    import unittest
    class Works(unittest.TestCase):
        def test_it(self):
            self.assertEqual(pb_utils.TritonError("x").code(), 1)
    class TritonPythonModel:
        def execute(self, requests):
            self.ok = unittest.main("model", exit=False, verbosity=0).result.wasSuccessful()
            return [pb_utils.InferenceResponse([])]
    """)
    assert loaded.infer({}).error is None
    assert loaded.model.instance.ok


@pytest.mark.parametrize("made, configured", [("INT64", "TYPE_FP32"), ("FP64", "TYPE_STRING"), ("INT32", "TYPE_INT32")])
def test_an_output_of_another_datatype_than_the_configuration_s_is_warned_of_once(
    load: Load, made: str, configured: str
) -> None:
    loaded = load(ECHO, output=[{"name": "OUT", "data_type": configured}, {"name": "OTHER", "data_type": "TYPE_BOOL"}])
    for _ in range(3):
        (output,) = loaded.outputs(loaded.infer({"IN": np.ones(2, DTYPE[made])}))
        assert output.datatype == made
    warned = [line[3] for line in loaded.logs if line[0] == "W"]
    name = {"TYPE_STRING": "BYTES"}.get(configured, configured[5:])
    text = f"output 'OUT' is {made} and not {name}, as the configuration has it; clients get it as it is"
    assert warned == [f"model instance 'probe_0_0': {text}"] * (made != name)
