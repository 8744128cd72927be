import pytest

from broker.config_warm_up import check_warm_up
from broker.model_config import from_message, parse_text
from protocol.errors import InvalidArgument

CONFIG = """
name: "m" backend: "python" max_batch_size: 4
input [{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "S" data_type: TYPE_STRING dims: [ 2 ] optional: true }]
output [{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }]
"""


def check(inputs: str, batch_size: int = 1, config: str = CONFIG) -> None:
    text = f'{config} model_warmup [{{ name: "w" batch_size: {batch_size} {inputs} }}]'
    check_warm_up(from_message(parse_text(text.encode(), "config.pbtxt")))


def given(data: str, name: str = "X", datatype: str = "TYPE_FP32", dims: str = "[ 2 ]") -> str:
    datatype = f"data_type: {datatype}" if datatype else ""
    return f'inputs {{ key: "{name}" value {{ {datatype} dims: {dims} {data} }} }}'


@pytest.mark.parametrize("data", ["zero_data: true", "zero_data: false", "random_data: true", 'input_data_file: "a/b"'])
def test_all_kinds_of_data_will_do(data):
    check(given(data))
    check(given(data) + given(data, "S", "TYPE_STRING"))


@pytest.mark.parametrize(
    "inputs, text",
    [
        (
            given("zero_data: true", dims="[ -1 ]"),
            "warmup setting expects all variable-size dimensions are specified for input 'X'",
        ),
        (given(""), "[request id: <id_unknown>] warmup setting expects input 'X' to have input_data_type set"),
        (
            given("zero_data: true", datatype="TYPE_INT64"),
            "[request id: <id_unknown>] inference input 'X' data-type is 'INT64', but model 'm' expects 'FP32'",
        ),
        (
            given("zero_data: true", datatype=""),
            "[request id: <id_unknown>] warmup setting expects input 'X' to have data_type set",
        ),
        (
            given("zero_data: true", dims="[ 2, 2 ]"),
            "[request id: <id_unknown>] unexpected shape for input 'X' for model 'm'. Expected [-1,-1], got [1,2,2]. ",
        ),
        (
            "",
            "[request id: <id_unknown>] expected number of inputs between 1 and 2 but got 0 inputs for model 'm'. "
            "Got input(s) [], but missing required input(s) ['X']. Please provide all required input(s).",
        ),
        (
            given('input_data_file: "../config.pbtxt"'),
            "input_data_file '../config.pbtxt' of input 'X' must stay within the model's warmup directory",
        ),
        (
            given('input_data_file: "a/../../b"'),
            "input_data_file 'a/../../b' of input 'X' must stay within the model's warmup directory",
        ),
        (
            given('input_data_file: "/etc/passwd"'),
            "input_data_file '/etc/passwd' of input 'X' must stay within the model's warmup directory",
        ),
    ],
)
def test_what_is_wrong_is_said_in_the_words_of_the_original(inputs, text):
    with pytest.raises(InvalidArgument) as error:
        check(inputs)
    assert str(error.value).startswith(text)


def test_a_sample_of_no_batch_is_not_looked_at():
    check(given(""), batch_size=0)


def test_inputs_that_the_configuration_does_not_name_are_for_the_model():
    check(given("zero_data: true") + given("zero_data: true", "START", "TYPE_INT32", "[ 1 ]"))


def test_a_model_without_warm_up_is_fine():
    check_warm_up(from_message(parse_text(CONFIG.encode(), "config.pbtxt")))
