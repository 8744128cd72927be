"""The messages of the gRPC service."""

from __future__ import annotations

from typing import Any

from protocol.kserve import generated

service_pb2: Any = generated("service_pb2")
