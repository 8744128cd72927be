"""Each row of the golden is a configuration and what Triton 2.51 (24.10) says of it: while polling or while loading."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker import repository
from broker.config_files import check_initial_states, read_labels
from broker.config_loading import finish, prepare
from broker.config_validation import check_model
from broker.model_config import parse_text
from protocol.errors import InvalidArgument, ServingError

ROWS = json.loads((Path(__file__).parent / "goldens" / "refused.json").read_text())

# What we say instead, and why.
DIFFERENCES = {
    # No path of the host in what a client may read.
    "out_label_missing": "Internal: failed to open text file for read absent.txt: No such file or directory",
    "state_file_missing": "Internal: failed to open text file for read none: No such file or directory",
    "runtime_other": "Invalid argument: unable to find backend library 'libtriton_other.so' for model 'runtime_other'",
    # The newest release checks what 2.51 does not.
    "out_label_escape": "Unsupported: label file path '../minimal.txt' for output 'OUT' in model 'out_label_escape' is "
    "outside model directory",
    "runtime_escape": "Invalid argument: unable to find backend library '../python/libtriton_python.so' for model "
    "'runtime_escape'",
    # 2.51 stumbles over its own JSON.
    "batch_input_kind": "Invalid argument: unknown batch input kind '' for batch_input_kind",
    # Harmless: it names what runs anyway.
    "runtime_model_py": "",
    # Not looked for before the environment is prepared: tests/tensorbus/test_environments.py.
    "env_missing": "",
}


def add_model(repository_dir: Path, row: dict[str, str]) -> None:
    model = repository_dir / row["name"]
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(row["config"])
    if 'platform: "' not in row["config"]:
        (model / "1" / "model.py").touch()
    (model / "initial_state").mkdir()
    (model / "initial_state" / "short").write_bytes(b"1234")


def outcome(repository_dir: Path, name: str) -> tuple[str, str]:
    """The stage at which the model is refused and the text; ("serve", "") if it is not."""
    found = repository.scan([str(repository_dir)])
    if found.failures:
        return "poll", found.failures[0].text
    directory = found.models[0]
    try:
        repository.versions_to_load(directory)
    except ServingError as error:
        return "versions", str(error)
    try:
        config = finish(prepare(directory.config))
        read_labels(config, directory.path)
        check_initial_states(config, directory.path)
    except ServingError as error:
        return "load", error.status_text()
    return "serve", ""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_a_faulty_configuration_is_refused_where_and_as_triton_refuses_it(row, tmp_path):
    add_model(tmp_path, row)
    stage, text = row["stage"], row["text"].replace("{repository}", str(tmp_path))
    if row["name"] in DIFFERENCES:
        text = DIFFERENCES[row["name"]]
        stage = "load" if text else "serve"
    assert outcome(tmp_path, row["name"]) == (stage, text)


def test_no_listed_difference_is_out_of_date():
    assert set(DIFFERENCES) <= {row["name"] for row in ROWS}


@pytest.mark.parametrize(
    ("metrics", "text"),
    [
        ("metric_control { }", "metric control must specify 'metric_identifier'"),
        ("metric_control { metric_identifier { } }", "metric identifier must specify non-empty 'family'"),
        (
            'metric_control { metric_identifier { family: "f" } }',
            "metric control must specify 'histogram_options'",
        ),
        (
            'metric_control { metric_identifier { family: "f" } histogram_options { } }',
            "histogram options must specify non-empty 'buckets'",
        ),
    ],
)
def test_metric_controls_must_be_complete(metrics, text):
    message = parse_text(f'name: "m" backend: "python" model_metrics {{ {metrics} }}'.encode(), "config.pbtxt")
    with pytest.raises(InvalidArgument) as refused:
        check_model(message)
    assert str(refused.value) == text
