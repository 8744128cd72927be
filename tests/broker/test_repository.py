from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker import places, repository
from broker.repository import LogLine
from protocol.errors import InternalError, InvalidArgument, NotFound

CONFIG = 'backend: "python"\n'


@pytest.fixture
def models(tmp_path):
    path = tmp_path / "models"
    path.mkdir()
    return path


def add(models: Path, name: str, config: str | None = CONFIG, versions: tuple[str, ...] = ("1",)) -> Path:
    for version in versions:
        (models / name / version).mkdir(parents=True)
        (models / name / version / "model.py").touch()
    (models / name).mkdir(exist_ok=True)
    if config is not None:
        (models / name / "config.pbtxt").write_text(config)
    return models / name


def scan(*repositories: Path, **options) -> repository.Scan:
    return repository.scan([str(path) for path in repositories], **options)


def versions(models: Path, name: str) -> tuple[list[int], list[LogLine]]:
    return repository.versions_to_load(repository.poll(name, str(models / name)))


def test_every_directory_is_a_model_and_files_are_not(models):
    add(models, "b")
    add(models, "a")
    (models / "README.md").touch()
    found = scan(models)
    assert [directory.name for directory in found.models] == ["a", "b"]
    assert found.models[0].path == str(models / "a")
    assert (found.failures, found.log) == ([], [])


def test_a_link_to_a_directory_is_a_model_and_a_dangling_one_hides_nothing(models, tmp_path):
    add(tmp_path / "elsewhere", "real")
    (models / "linked").symlink_to(tmp_path / "elsewhere" / "real")
    (models / "dangling").symlink_to(tmp_path / "nowhere")
    assert [directory.name for directory in scan(models).models] == ["linked"]


def test_a_hidden_directory_is_a_model_and_one_of_no_backend_cannot_be_polled(models):
    (models / "hidden").mkdir()
    (models / ".ipynb_checkpoints" / "1").mkdir(parents=True)
    add(models, "good")
    found = scan(models)
    assert [failure.name for failure in found.failures] == ["hidden"]
    # The part after the first dot is taken for a backend: loading it will fail, not polling.
    assert [(one.name, one.config.backend) for one in found.models] == [
        (".ipynb_checkpoints", "ipynb_checkpoints"),
        ("good", "python"),
    ]


def test_one_bad_model_is_told_and_the_others_are_found(models):
    add(models, "bad", "nonsense: 1")
    add(models, "good")
    found = scan(models)
    text = f"failed to read text proto from {models}/bad/config.pbtxt"
    assert found.failures == [repository.PollFailure("bad", text)]
    place = '1:1 : Message type "inference.ModelConfig" has no field named "nonsense".'
    assert found.log == [LogLine("error", f"Poll failed for model directory 'bad': {text}: {place}")]
    assert [directory.name for directory in found.models] == ["good"]


def test_the_name_in_the_configuration_must_be_the_directorys(models):
    add(models, "here", 'name: "there" ' + CONFIG)
    text = "unexpected directory name 'here' for model 'there', directory name must equal model name"
    assert [failure.text for failure in scan(models).failures] == [text]


def test_without_a_file_the_configuration_is_guessed(models):
    add(models, "m", None)
    directory = scan(models).models[0]
    assert not directory.config_given
    assert (directory.config.name, directory.config.backend) == ("m", "python")


def test_without_auto_completion_a_file_is_needed_and_has_to_be_complete(models):
    add(models, "none", None)
    add(models, "partial", CONFIG + 'input [ { name: "A" } ]')
    assert [failure.text for failure in scan(models, auto_complete=False).failures] == [
        f"failed to open text file for read {models}/none/config.pbtxt: No such file or directory",
        "model input 'A' must specify 'data_type' for partial",
    ]


def test_a_configuration_that_is_a_directory_is_told(models):
    (add(models, "m", None) / "config.pbtxt").mkdir()
    assert scan(models).failures[0].text.endswith("config.pbtxt: Is a directory")


def test_a_variant_is_chosen_by_name_where_there_is_one(models):
    with_variant = add(models, "with", "max_batch_size: 1")
    add(models, "without", "max_batch_size: 2")
    (with_variant / "configs").mkdir()
    (with_variant / "configs" / "big.pbtxt").write_text("max_batch_size: 64")
    found = scan(models, config_name="big").models
    assert [directory.config.max_batch_size for directory in found] == [64, 2]


def test_a_model_in_two_repositories_is_in_neither(models, tmp_path):
    add(models, "twin")
    add(models, "single")
    add(tmp_path / "more", "twin")
    found = scan(models, tmp_path / "more")
    assert [directory.name for directory in found.models] == ["single"]
    text = "model appears in two or more repositories"
    assert found.failures == [repository.PollFailure("twin", text, is_duplicate=True)]
    log = "failed to poll model 'twin': not unique across all model repositories"
    assert found.log == [LogLine("error", log)]


def test_a_repository_given_twice_is_one(models):
    add(models, "m")
    assert [directory.name for directory in scan(models, models).models] == ["m"]


def test_a_repository_must_be_a_directory(models):
    with pytest.raises(InternalError, match=rf"^failed to stat file {models}/absent$"):
        scan(models / "absent")
    (models / "file").touch()
    with pytest.raises(InvalidArgument, match=r"^repository path is not a valid directory$"):
        scan(models / "file")


def test_version_directories_are_numbers(models):
    add(models, "m", CONFIG + "version_policy { all { } }", ("0", "9", "10", "003", "abc", "1abc", "-1", "+2"))
    for skipped in ("warmup", "initial_state", "configs"):
        (models / "m" / skipped).mkdir()
    (models / "m" / "7").touch()
    chosen, log = versions(models, "m")
    assert chosen == [0, 9, 10]
    text = "ignore version directory '{}' which fails to convert to integral number"
    assert sorted(log) == sorted(
        [
            LogLine("warning", "ignore version directory '003' which contains leading zeros in its directory name"),
            *(LogLine("warning", text.format(name)) for name in ("abc", "1abc", "-1", "+2")),
        ]
    )


def test_only_the_newest_version_is_served_by_default(models):
    add(models, "m", CONFIG, ("2", "10", "9"))
    assert versions(models, "m") == ([10], [])


def test_a_specific_version_that_is_not_there_is_logged(models):
    add(models, "m", CONFIG + "version_policy { specific { versions: [ 1, 5 ] } }", ("1", "2"))
    text = "version 5 is specified for model 'm', but the version directory is not present"
    assert versions(models, "m") == ([1], [LogLine("error", text)])


@pytest.mark.parametrize("policy", ["specific { versions: [ 5 ] }", "latest { num_versions: 0 }"])
def test_a_policy_must_leave_a_version(models, policy):
    add(models, "m", CONFIG + f"version_policy {{ {policy} }}")
    with pytest.raises(InvalidArgument) as refused:
        versions(models, "m")
    assert str(refused.value) == "at least one version must be available under the version policy of model 'm'"


def test_an_ensemble_needs_a_version_directory_though_it_may_be_empty(models):
    tensors = 'input { name: "IN" data_type: TYPE_FP32 dims: 1 } output { name: "OUT" data_type: TYPE_FP32 dims: 1 }'
    maps = 'input_map { key: "X" value: "IN" } output_map { key: "Y" value: "OUT" }'
    steps = f'ensemble_scheduling {{ step {{ model_name: "m" model_version: -1 {maps} }} }}'
    add(models, "e", f'platform: "ensemble" {tensors} {steps}', versions=())
    with pytest.raises(InvalidArgument, match=r"^at least one version must be available"):
        versions(models, "e")
    (models / "e" / "3").mkdir()
    assert versions(models, "e") == ([3], [])


def test_a_stray_folder_does_not_keep_the_backend_from_being_found(models):
    add(models, "m", None)
    (models / "m" / ".cache").mkdir()
    (models / "m" / "0stray").mkdir()
    assert scan(models).models[0].config.backend == "python"


def test_a_link_that_leads_nowhere_at_all_hides_nothing(models):
    add(models, "good")
    (models / "loop").symlink_to("loop")
    (models / "good" / "loop").symlink_to("loop")
    (models / "good" / "1" / "loop").symlink_to("loop")
    assert [directory.name for directory in scan(models).models] == ["good"]
    assert versions(models, "good")[0] == [1]


def test_a_name_that_is_not_utf8_is_one_failed_poll(models):
    add(models, "good")
    os.mkdir(os.fsencode(models) + b"/caf\xe9")
    found = scan(models)
    assert [directory.name for directory in found.models] == ["good"]
    assert found.failures == [repository.PollFailure(r"caf\xe9", "the directory's name is not UTF-8")]


def test_a_repository_whose_path_is_not_utf8_is_refused(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    os.mkdir(path)
    with pytest.raises(InvalidArgument, match=r"caf\\xe9' is not UTF-8"):
        repository.scan([path])


def test_a_configuration_that_is_a_pipe_is_a_failed_poll(models):
    add(models, "piped", config=None)
    os.mkfifo(models / "piped" / "config.pbtxt")
    add(models, "good")
    found = scan(models)
    assert [directory.name for directory in found.models] == ["good"]
    assert [failure.text.rpartition(": ")[2] for failure in found.failures] == ["Not a regular file"]


def test_only_the_models_named_are_polled(models):
    for name in "abc":
        add(models, name)
    found = scan(models, only=("c", "a", "nope"))
    assert [directory.name for directory in found.models] == ["a", "c"]
    assert [(failure.name, failure.text) for failure in found.failures] == [
        ("nope", "model not found in any model repository.")
    ]
    assert found.log == [LogLine("error", "failed to poll model 'nope': model not found in any model repository.")]


def test_a_model_is_located_by_its_name_alone(models, tmp_path):
    add(models, "m")
    (tmp_path / "other" / "twice").mkdir(parents=True)
    add(models, "twice")
    repositories = [str(models), str(tmp_path / "other")]
    assert places.locate("m", repositories) == str(models / "m")
    for name in ("nope", "..", ".", "", "m/1", "twice"):
        with pytest.raises(NotFound):
            places.locate(name, repositories)
    assert places.names(repositories) == {"m": "", "twice": "model appears in two or more repositories"}


def test_a_configuration_given_takes_the_place_of_the_file(models):
    path = add(models, "m", config="nonsense")
    directory = repository.poll("m", str(path), config_json='{"maxBatchSize": 3}')
    assert (directory.config.max_batch_size, directory.config.backend) == (3, "python")
    for text in ("", "[]", "nonsense", '{"nope": 1}'):
        with pytest.raises(InvalidArgument, match=r"^Invalid config override: "):
            repository.poll("m", str(path), config_json=text)
