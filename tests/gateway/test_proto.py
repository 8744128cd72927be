"""The door to tritonclient's generated modules: what it does not import, and what it leaves for others to find."""

from __future__ import annotations

import subprocess
import sys

import pytest

CASES = {
    "neither_grpcio_nor_the_client": """
import sys
import gateway.proto
assert "grpc" not in sys.modules and "tritonclient.grpc" not in sys.modules and "numpy" not in sys.modules
""",
    "the_same_modules_as_the_client_later": """
import gateway.proto
import tritonclient.grpc as client
from tritonclient.grpc import model_config_pb2
import tritonclient.grpc.service_pb2
assert client.service_pb2 is gateway.proto.service_pb2 is tritonclient.grpc.service_pb2
assert model_config_pb2 is gateway.proto.model_config_pb2
assert client.InferenceServerClient
""",
    "the_same_modules_as_the_client_before": """
import tritonclient.grpc as client
import gateway.proto
assert client.service_pb2 is gateway.proto.service_pb2
""",
}


@pytest.mark.parametrize("case", CASES)
def test_the_door_loads(case: str) -> None:
    subprocess.run([sys.executable, "-c", CASES[case]], check=True, timeout=60)
