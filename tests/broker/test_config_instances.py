from __future__ import annotations

import pytest

from broker.config_instances import check_instance_groups, normalize_instance_groups
from broker.model_config import InstanceSpec, from_message, parse_text
from protocol.errors import InternalError, InvalidArgument


def instances(groups: str, gpus: tuple[int, ...] = ()) -> list[InstanceSpec]:
    message = parse_text(f'name: "m" backend: "python" {groups}'.encode(), "config.pbtxt")
    normalize_instance_groups(message, gpus)
    check_instance_groups(message, gpus)
    return list(from_message(message).instances)


def test_without_a_group_the_only_instance_bears_the_models_name():
    assert instances("") == [InstanceSpec("m_0", "CPU", 0, False)]


def test_an_unnamed_group_is_numbered():
    names = [spec.name for spec in instances('instance_group [ { }, { name: "fast" count: 2 }, { count: 0 } ]')]
    assert names == ["m_0_0", "fast_0", "fast_1", "m_2_0"]


def test_a_negative_count_is_one():
    assert len(instances("instance_group [ { count: -2 } ]")) == 1


@pytest.mark.parametrize(
    "groups, count", [("", 2), ("instance_group [ { count: 1 } ]", 1), ("instance_group [ { } ]", 2)]
)
def test_on_the_cpu_the_onnx_backend_has_two_instances_unless_told(groups, count):
    message = parse_text(f'name: "m" backend: "onnxruntime" {groups}'.encode(), "config.pbtxt")
    normalize_instance_groups(message)
    assert message.instance_group[0].count == count


def test_on_a_gpu_the_onnx_backend_has_one_instance():
    message = parse_text(b'name: "m" backend: "onnxruntime"', "config.pbtxt")
    normalize_instance_groups(message, gpus=(0,))
    assert message.instance_group[0].count == 1


def test_with_gpus_a_group_of_no_kind_runs_on_each_of_them():
    assert [(spec.kind, spec.device_id) for spec in instances("", gpus=(0, 1))] == [("GPU", 0), ("GPU", 1)]


def test_a_group_of_no_kind_whose_gpus_are_not_all_there_runs_on_the_cpu():
    with pytest.raises(InvalidArgument, match="has kind KIND_CPU but specifies one or more GPUs"):
        instances("instance_group [ { gpus: [ 0, 7 ] } ]", gpus=(0, 1))


def test_a_listed_gpu_must_be_there():
    with pytest.raises(InvalidArgument) as refused:
        instances("instance_group [ { kind: KIND_GPU gpus: [ 3 ] } ]", gpus=(0, 1))
    assert str(refused.value) == (
        "instance group m_0 of model m specifies invalid or unsupported gpu id 3. GPUs with at least the minimum "
        "required CUDA compute compatibility of 6.000000 are: 0, 1"
    )


def test_kind_model_has_no_device_of_ours():
    assert instances("instance_group [ { kind: KIND_MODEL } ]") == [InstanceSpec("m_0_0", "MODEL", 0, False)]


def test_an_ensemble_gets_no_group():
    assert instances("ensemble_scheduling { }") == []


def test_a_kind_that_has_no_name_is_refused():
    with pytest.raises(InternalError, match=r"^instance group m_0 of model m has unexpected kind KIND_AUTO$"):
        instances("instance_group [ { kind: 99 } ]")
