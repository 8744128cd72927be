from __future__ import annotations

import pytest

from broker.backends import Backend
from broker.config_json import to_json
from broker.config_loading import finish, prepare
from broker.config_normalize import normalize
from broker.model_config import from_message, parse_text
from protocol.errors import InvalidArgument, Unsupported


def polled(text: str = "", backend: str = "python"):
    message = parse_text(f'name: "m" backend: "{backend}" {text}'.encode(), "config.pbtxt")
    normalize(message)
    return from_message(message)


def test_a_prepared_configuration_has_its_instances_and_the_polled_one_is_untouched():
    config = polled()
    before = to_json(config.message)
    assert [spec.name for spec in prepare(config).instances] == ["m_0"]
    assert to_json(config.message) == before


def test_preparing_twice_gives_the_same():
    once = prepare(polled("instance_group [ { count: 2 } ]"))
    assert prepare(once) == once


@pytest.mark.parametrize("runtime", ["", "model.py", "libtriton_python.so"])
def test_every_name_of_the_python_runtime_is_ours(runtime):
    prepare(polled(f'runtime: "{runtime}"'))


@pytest.mark.parametrize("runtime", ["", "model.py", "libtriton_mine.so"])
def test_a_python_based_backend_may_be_named_as_the_runtime_too(runtime):
    config = prepare(
        polled(f'runtime: "{runtime}"', backend="mine"), backend=Backend("mine", "/backends/mine/model.py")
    )
    assert config.runtime == (runtime or "model.py")


def test_another_runtime_is_not_found():
    with pytest.raises(InvalidArgument, match=r"^unable to find backend library 'other.py' for model 'm'$"):
        prepare(polled('runtime: "other.py"', backend="mine"), backend=Backend("mine", "/backends/mine/model.py"))


def test_a_backend_that_is_not_there_is_named():
    with pytest.raises(InvalidArgument) as refused:
        prepare(polled(backend="nosuch"))
    assert str(refused.value) == (
        "unable to find backend library for backend 'nosuch', try specifying runtime on the model configuration."
    )


@pytest.mark.parametrize("filename", ["../x.py", "/x.py", "a/../../x.py", ".."])
def test_the_model_file_must_be_in_the_version_directory(filename):
    with pytest.raises(InvalidArgument, match=r"of model 'm' must stay within the version directory$"):
        prepare(polled(f'default_model_filename: "{filename}"'))


@pytest.mark.parametrize("filename", ["mine.py", "code/mine.py", "..mine.py", "a/../mine.py"])
def test_the_model_file_may_have_any_name(filename):
    assert prepare(polled(f'default_model_filename: "{filename}"')).default_model_filename == filename


@pytest.mark.parametrize("character", ";|&$`<>()[]{}\\\"'*?~#!")
def test_names_of_stubs_have_no_characters_of_a_shell(character):
    in_a_group = polled()
    in_a_group.message.instance_group.add(name=f"g{character}")
    in_the_model = polled()
    in_the_model.message.name = f"m{character}"
    for config in (in_a_group, from_message(in_the_model.message)):
        with pytest.raises(InvalidArgument, match=r"^Invalid stub name: contains invalid characters$"):
            prepare(config)


@pytest.mark.parametrize("name", ["TestModel123", "with-hyphens", "with_underscores", "a.b,c:d=e@f%g+h^i", "größe"])
def test_other_characters_are_fine(name):
    config = polled()
    config.message.name = name
    assert [spec.name for spec in prepare(from_message(config.message)).instances] == [f"{name}_0"]


def test_where_inputs_lie_is_a_yes_or_a_no():
    parameter = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value: { string_value: "%s" } }'
    for word in ("yes", "no"):
        assert prepare(polled(parameter % word))
    with pytest.raises(Unsupported, match=r"^Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: maybe'$"):
        prepare(polled(parameter % "maybe"))


def test_inputs_and_outputs_are_checked_when_all_is_complete():
    config = prepare(polled('input [ { name: "A" } ]'))
    with pytest.raises(InvalidArgument, match=r"^model input 'A' must specify 'data_type' for m$"):
        finish(config)
