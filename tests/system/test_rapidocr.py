"""The example that reads the text of a picture, run as its readme says."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from tests.system.conftest import ROOT, Repository, Start

EXAMPLE = ROOT / "examples" / "rapidocr"
NEEDED = ("rapidocr_onnxruntime", "onnxruntime", "PIL", "tritonclient")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")


def run(script: str, *arguments: object) -> str:
    command = [sys.executable, str(EXAMPLE / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_text_of_a_picture_is_read(repository: Repository, start: Start) -> None:
    run("make_repository.py", repository.path)
    server = start()
    characters = repository.path / "text_recognition" / "characters.txt"
    assert run("client.py", "--url", server.http, "--characters", characters).splitlines() == [
        "Hello tensorbus",
        "Reading pictures",
        "1234567890",
    ]
    assert server.get("/v2/models/text_detection").json["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [-1, 3, -1, -1]}
    ]
