from __future__ import annotations

import pytest

from broker.config_files import check_initial_states, read_labels
from broker.model_config import from_message, parse_text
from protocol.errors import InternalError, InvalidArgument, Unsupported


def labelled(file_name: str):
    text = f'name: "m" output [ {{ name: "OUT" label_filename: "{file_name}" }} ]'
    return from_message(parse_text(text.encode(), "config.pbtxt"))


def with_state(file_name: str, data_type: str = "TYPE_FP32"):
    initial = f'initial_state {{ data_type: {data_type} dims: [ 3 ] data_file: "{file_name}" name: "i" }}'
    text = f'name: "m" sequence_batching {{ state [ {{ input_name: "S" data_type: {data_type} dims: 3 {initial} }} ] }}'
    return from_message(parse_text(text.encode(), "config.pbtxt"))


def test_each_line_is_a_label(tmp_path):
    (tmp_path / "labels.txt").write_text("cat\n\ndog\n")
    assert read_labels(labelled("labels.txt"), str(tmp_path)) == {"OUT": ("cat", "", "dog")}


def test_an_empty_label_file_has_no_label(tmp_path):
    (tmp_path / "labels.txt").touch()
    assert read_labels(labelled("labels.txt"), str(tmp_path)) == {"OUT": ()}


def test_a_missing_label_file_is_an_error_that_does_not_tell_where_we_looked(tmp_path):
    with pytest.raises(InternalError) as refused:
        read_labels(labelled("absent.txt"), str(tmp_path))
    assert str(refused.value) == "failed to open text file for read absent.txt: No such file or directory"


@pytest.mark.parametrize("name", ["../outside.txt", "/etc/hostname", "link.txt"])
def test_a_label_file_outside_the_model_is_refused(tmp_path, name):
    model = tmp_path / "m"
    model.mkdir()
    (tmp_path / "outside.txt").write_text("secret")
    (model / "link.txt").symlink_to(tmp_path / "outside.txt")
    with pytest.raises(Unsupported, match=r"^label file path '.*' for output 'OUT' in model 'm' is outside model"):
        read_labels(labelled(name), str(model))


def test_the_data_of_an_initial_state_must_be_long_enough(tmp_path):
    (tmp_path / "initial_state").mkdir()
    (tmp_path / "initial_state" / "data").write_bytes(b"1234")
    with pytest.raises(InvalidArgument) as refused:
        check_initial_states(with_state("data"), str(tmp_path))
    assert str(refused.value) == (
        "initial_state setting expects 12 bytes, but the data provided from dataonly has 4 bytes."
    )
    check_initial_states(with_state("data", "TYPE_STRING"), str(tmp_path))
    check_initial_states(with_state("data", "TYPE_INT8"), str(tmp_path))


def test_the_data_of_an_initial_state_must_be_there_and_inside(tmp_path):
    with pytest.raises(InternalError, match=r"^failed to open text file for read data: No such file"):
        check_initial_states(with_state("data"), str(tmp_path))
    with pytest.raises(InvalidArgument, match="outside model directory"):
        check_initial_states(with_state("../../data"), str(tmp_path))
