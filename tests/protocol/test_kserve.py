"""The door to tritonclient's generated modules: what it does not import, and what it leaves for others to find."""

from __future__ import annotations

import subprocess
import sys

import pytest

CASES = {
    "neither_grpcio_nor_the_client": """
import sys
from protocol.kserve import generated
generated("service_pb2")
assert "grpc" not in sys.modules and "tritonclient.grpc" not in sys.modules and "numpy" not in sys.modules
""",
    "nothing_before_it_is_asked": """
import sys
import protocol.kserve
assert not [name for name in sys.modules if name.startswith(("google", "tritonclient"))]
""",
    "the_same_modules_as_the_client_later": """
from protocol.kserve import generated
configurations, service = generated("model_config_pb2"), generated("service_pb2")
import tritonclient.grpc as client
from tritonclient.grpc import model_config_pb2
import tritonclient.grpc.service_pb2
assert client.service_pb2 is service is tritonclient.grpc.service_pb2
assert model_config_pb2 is configurations
assert client.InferenceServerClient
""",
    "the_same_modules_as_the_client_before": """
import tritonclient.grpc as client
from protocol.kserve import generated
assert client.service_pb2 is generated("service_pb2")
assert client.model_config_pb2 is generated("model_config_pb2")
""",
    "one_class_for_gateway_and_broker": """
from broker.proto import ModelConfigMessage
from gateway.proto import service_pb2
assert type(service_pb2.ModelConfigResponse().config) is ModelConfigMessage
""",
}


@pytest.mark.parametrize("case", CASES)
def test_the_door_loads(case: str) -> None:
    subprocess.run([sys.executable, "-c", CASES[case]], check=True, timeout=60)
