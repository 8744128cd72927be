"""The examples that come with Triton's Python backend run here with their own clients, models and clients unmodified.

``TENSORBUS_PYTHON_BACKEND`` names a checkout of that repository. The clients take the ports 8000 to 8002 for granted.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.conftest import Server

CHECKOUT = os.environ.get("TENSORBUS_PYTHON_BACKEND")
PORTS = (8000, 8001, 8002)
TIMEOUT_S = 100

# Model: the folder of its files, and how their names begin.
ADD_SUB, SQUARE = {"add_sub": ("add_sub", "")}, {"square_int32": ("decoupled", "square_")}
BLS = {**ADD_SUB, "pytorch": ("pytorch", "")}
EXAMPLES = [
    ("add_sub", ADD_SUB, "client.py", "PASS: add_sub", ""),
    (
        "auto_complete",
        {"nobatch_auto_complete": ("auto_complete", "nobatch_"), "batch_auto_complete": ("auto_complete", "batch_")},
        "client.py",
        "PASS: auto_complete",
        "",
    ),
    ("bls", {**BLS, "bls_sync": ("bls", "sync_")}, "sync_client.py", "PASS: BLS Sync", "torch"),
    ("bls", {**BLS, "bls_async": ("bls", "async_")}, "async_client.py", "PASS: BLS Async", "torch"),
    *(
        (
            "bls_decoupled",
            {**SQUARE, f"bls_decoupled_{kind}": ("bls_decoupled", f"{kind}_")},
            f"{kind}_client.py",
            f"PASS: BLS Decoupled {kind.capitalize()}",
            "",
        )
        for kind in ("sync", "async")
    ),
    ("custom_metrics", {"custom_metrics": ("custom_metrics", "")}, "client.py", "PASS: custom_metrics", "requests"),
    ("decoupled", {"repeat_int32": ("decoupled", "repeat_")}, "repeat_client.py", "PASS: repeat_int32", ""),
    ("decoupled", SQUARE, "square_client.py", "PASS: square_int32", ""),
    ("jax", {"jax": ("jax", "")}, "client.py", "PASS: jax", "jax"),
    ("pytorch", {"pytorch": ("pytorch", "")}, "client.py", "PASS: pytorch", "torch"),
]


@pytest.fixture
def examples() -> Path:
    if not CHECKOUT:
        pytest.skip("TENSORBUS_PYTHON_BACKEND is not set: no checkout of Triton's Python backend")
    for port in PORTS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                pytest.skip(f"port {port} is taken")
    return Path(CHECKOUT) / "examples"


def install(examples: Path, repository: Path, models: dict[str, tuple[str, str]]) -> None:
    for model, (folder, prefix) in models.items():
        version = repository / model / "1"
        version.mkdir(parents=True)
        shutil.copy(examples / folder / f"{prefix}model.py", version / "model.py")
        config = examples / folder / f"{prefix}config.pbtxt"
        if config.exists():
            shutil.copy(config, repository / model / "config.pbtxt")


@pytest.mark.parametrize(("folder", "models", "client", "says", "needs"), EXAMPLES, ids=[one[3] for one in EXAMPLES])
def test_an_example_passes_with_its_own_client(
    examples: Path, tmp_path: Path, folder: str, models: dict[str, tuple[str, str]], client: str, says: str, needs: str
) -> None:
    if needs and importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    install(examples, tmp_path / "models", models)
    ports = [f"--{kind}-port={port}" for kind, port in zip(("http", "grpc", "metrics"), PORTS, strict=True)]
    server = Server(tmp_path / "models", tmp_path / "log", *ports).wait_ready(TIMEOUT_S)
    try:
        command = [sys.executable, str(examples / folder / client)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=tmp_path)
    finally:
        assert server.terminate() == 0
    assert done.returncode == 0, done.stdout + done.stderr
    assert says in done.stdout, done.stdout + done.stderr
