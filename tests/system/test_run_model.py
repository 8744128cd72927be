"""``tensorbus run-model`` as its users run it: a process of its own, its streams a terminal's stand-in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.system.conftest import IDENTITY, ROOT, Repository, json_request

DEADLINE_S = 60
DECOUPLED = """
backend: "python"
input [{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }]
model_transaction_policy { decoupled: true }
"""
BATCHING = """
backend: "python"
max_batch_size: 8
input [{ name: "IN" data_type: TYPE_FP32 dims: [ 2 ] }]
output [{ name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] }]
"""


class Done:
    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code = done.returncode
        self.out = done.stdout
        self.err = done.stderr

    @property
    def responses(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines() if line.startswith("{")]

    @property
    def data(self) -> list[list[Any]]:
        """Of the one output of each response."""
        return [response["outputs"][0]["data"] for response in self.responses]


@pytest.fixture
def run(repository: Repository) -> Callable[..., Done]:
    def run(model: str, *options: str, stdin: str = "") -> Done:
        command = [sys.executable, "-m", "tensorbus", "run-model", str(repository.path / model), *options]
        return Done(subprocess.run(command, cwd=ROOT, input=stdin, capture_output=True, text=True, timeout=DEADLINE_S))

    return run


@pytest.fixture
def request_file(tmp_path: Path) -> Callable[..., str]:
    """A file with one request for each list of values, in a list unless there is but one."""

    def write(*requests: list[float]) -> str:
        bodies = [json_request(values).decode() for values in requests]
        path = tmp_path / "requests.json"
        path.write_text(bodies[0] if len(bodies) == 1 else "[" + ",".join(bodies) + "]")
        return f"--input={path}"

    return write


def test_a_request_from_a_file_is_answered_in_kserves_json(repository, run, request_file):
    repository.add("m")
    done = run("m", request_file([1, 2.5]))
    assert done.code == 0, done.err
    (output,) = done.responses[0]["outputs"]
    assert done.responses[0]["model_name"] == "m"
    assert output == {"name": "OUT", "datatype": "FP32", "shape": [2], "data": [1.0, 2.5]}
    assert "execute took" in done.err


def test_without_a_file_the_inputs_are_zeros_and_that_is_said(repository, run):
    repository.add("m")
    done = run("m")
    assert done.data == [[0.0]]
    assert "no --input" in done.err


def test_the_streams_are_the_users_and_breakpoints_stop(repository, run, request_file):
    code = """
    def execute(self, requests):
        print("say something:", input())
        answer = 6 * 7
        breakpoint()
        return [respond(request, values(request)) for request in requests]
    """
    repository.add("m", code)
    done = run("m", request_file([1]), stdin="hello\np answer\ncontinue\n")
    assert done.code == 0, done.err
    assert "say something: hello" in done.out
    assert "(Pdb) 42" in done.out
    assert '"data": [1.0]' in done.out


def test_quitting_the_debugger_quits(repository, run, request_file):
    code = """
    def execute(self, requests):
        breakpoint()
        return [respond(request, values(request)) for request in requests]
    """
    repository.add("m", code)
    done = run("m", request_file([1], [2]), stdin="quit\n")
    assert done.code == 130
    assert done.out.count("(Pdb)") == 1


def test_an_error_has_the_clients_text_and_a_traceback_with_the_lines_and_the_cause(repository, run, request_file):
    code = """
    def execute(self, requests):
        for request in requests:
            try:
                [][len(requests)]
            except IndexError as error:
                raise ValueError("no luck") from error
    """
    repository.add("m", code)
    done = run("m", request_file([1], [2]))
    assert done.code == 1
    assert [response["error"].count("ValueError: no luck\n\nAt:\n") for response in done.responses] == [1, 1]
    assert done.err.count('raise ValueError("no luck") from error') == 2
    assert done.err.count("[][len(requests)]") == 2
    assert "session.py" not in done.err


@pytest.mark.parametrize("request_text", ["[1, 2]", "no json"])
def test_finalize_is_called_whatever_happens_and_may_fail(repository, run, request_text, tmp_path):
    repository.add("m", IDENTITY + "\ndef finalize(self):\n    raise ValueError('no end')\n")
    (tmp_path / "requests.json").write_text(request_text)
    done = run("m", f"--input={tmp_path / 'requests.json'}")
    assert done.code == 1
    assert "raise ValueError('no end')" in done.err


@pytest.mark.parametrize("code", ["def initialize(self, args): args['nothing']", "def execute(self requests): pass"])
def test_a_model_that_does_not_load_shows_where(repository, run, code):
    repository.add("m", code)
    done = run("m")
    assert done.code == 1
    assert "model.py" in done.err
    assert code in done.err
    assert "tensorbus/" not in done.err.replace(str(repository.path), "")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("nonsense: 1", "config.pbtxt: 1:1 : Message type"),
        (
            'platform: "ensemble" input [{ name: "X" data_type: TYPE_FP32 dims: [ 1 ] }] '
            'output [{ name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }] ensemble_scheduling { step [{ model_name: "n" '
            'input_map { key: "IN" value: "X" } output_map { key: "OUT" value: "Y" } }] }',
            "model 'm' is an ensemble, which has no code of its own to run",
        ),
    ],
)
def test_a_configuration_that_cannot_be_run_is_told_where_and_why(repository, run, config, said):
    repository.add("m", IDENTITY, config=config)
    done = run("m")
    assert done.code == 1
    assert said in done.err


def test_the_highest_version_runs_unless_another_is_named(repository, run):
    for version in (1, 2, 10):
        code = f"def execute(self, requests): return [respond(r, np.float32([{version}])) for r in requests]"
        repository.add("m", code, version=version, config=None if version == 1 else "")
    (repository.path / "m" / "config.pbtxt").write_text('backend: "python"\n' + BATCHING.split("\n", 3)[3])
    assert run("m").data == [[10.0]]
    assert run("m", "--version=2").data == [[2.0]]
    assert "there is no version 3" in run("m", "--version=3").err


def test_a_model_completes_its_configuration_as_in_the_server(repository, run, request_file):
    code = """
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]})
        config.set_max_batch_size(0)
        return config

    def execute(self, requests):
        return [respond(request, values(request)) for request in requests]
    """
    repository.add("m", code, config="")
    assert run("m", request_file([3, 4])).data == [[3.0, 4.0]]


def test_a_request_that_the_server_would_refuse_is_refused_in_its_words(repository, run, tmp_path):
    repository.add("m", config=BATCHING)
    path = tmp_path / "wrong.json"
    path.write_bytes(json_request([1, 2, 3]))
    done = run("m", f"--input={path}")
    assert done.code == 1
    assert "unexpected shape for input 'IN' for model 'm'. Expected [-1,2], got [3]" in done.responses[0]["error"]


def test_requests_go_to_one_call_of_execute_if_asked(repository, run, request_file):
    code = """
    def execute(self, requests):
        print("requests:", len(requests))
        return [respond(request, values(request)) for request in requests]
    """
    repository.add("m", code)
    file = request_file([1], [2], [3])
    assert run("m", file).out.count("requests: 1\n") == 3
    together = run("m", file, "--batch")
    assert together.out.count("requests: 3\n") == 1
    assert together.data == [[1.0], [2.0], [3.0]]


def test_arrays_come_from_an_npz_file(repository, run, tmp_path):
    repository.add("m")
    np.savez(tmp_path / "arrays.npz", IN=np.arange(20, dtype=np.float32))
    done = run("m", f"--input={tmp_path / 'arrays.npz'}", "--full")
    assert done.data == [[float(i) for i in range(20)]]
    assert run("m", f"--input={tmp_path / 'arrays.npz'}").data == [[*map(float, range(16)), "... 4 more"]]


def test_it_repeats_and_sums_up(repository, run):
    repository.add("m")
    done = run("m", "--repeat=5")
    assert len(done.responses) == 5
    assert "5 calls of execute: fastest" in done.err


def test_each_response_of_a_decoupled_model_is_shown_as_it_is_sent(repository, run, request_file):
    code = """
    def execute(self, requests):
        import threading
        for request in requests:
            threading.Thread(target=self.stream, args=[request.get_response_sender(), values(request)]).start()

    def stream(self, sender, array):
        for value in array:
            print("sending", value)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.float32([value]))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    repository.add("m", code, config=DECOUPLED)
    done = run("m", request_file([1, 2, 3]))
    assert done.code == 0, done.err
    assert done.data == [[1.0], [2.0], [3.0]]
    said = [line.split()[0] for line in done.out.splitlines()]
    assert said == ["sending", '{"model_name":'] * 3


def test_modules_of_the_models_are_found_in_spite_of_their_names(repository, run):
    code = """
    def execute(self, requests):
        import broker, metrics, multiprocessing, protocol, shm, stub, utils
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            whose = pool.map(utils.whose, [each.WHOSE for each in (broker, metrics, protocol, shm, stub)])
        return [respond(request, np.float32(whose)) for request in requests]
    """
    folder = repository.add("m", code)
    for number, name in enumerate(("broker", "metrics", "protocol", "shm", "stub")):
        (folder / f"{name}.py").write_text(f"WHOSE = {number}")
    (folder / "utils.py").write_text("import metrics\ndef whose(number): return number + 10 * metrics.WHOSE")
    done = run("m")
    assert done.data == [[10.0, 11.0, 12.0, 13.0, 14.0]], done.out + done.err


def test_what_needs_a_server_says_so(repository, run):
    code = """
    def execute(self, requests):
        pb_utils.InferenceRequest(model_name="other", requested_output_names=[], inputs=[]).exec()
    """
    repository.add("m", code)
    assert "A model in the foreground cannot call other models" in run("m").responses[0]["error"]


def test_ctrl_c_ends_it_wherever_it_is(repository, run, flag, request_file):
    code = f"""
    def execute(self, requests):
        open({str(flag("inside"))!r}, "w").close()
        time.sleep(60)
    """
    repository.add("m", code)
    command = [sys.executable, "-m", "tensorbus", "run-model", str(repository.path / "m"), "--repeat=1000"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = DEADLINE_S
    while not os.path.exists(flag("inside")):
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.02)
        deadline -= 0.02
        assert deadline > 0
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
