from __future__ import annotations

import subprocess
import sys


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_message_comes_without_the_client():
    assert run("import broker.proto, sys; print('grpc' in sys.modules, 'numpy' in sys.modules)") == "False False\n"


def test_a_client_in_the_same_process_has_the_same_message_whoever_comes_first():
    same = "print(ModelConfigMessage is model_config_pb2.ModelConfig)"
    ours, theirs = "from broker.proto import ModelConfigMessage", "from tritonclient.grpc import model_config_pb2"
    assert run(f"{ours}\n{theirs}\n{same}") == "True\n"
    assert run(f"{theirs}\n{ours}\n{same}") == "True\n"
