"""A model repository in Google Cloud Storage: a real server, the real driver, and an emulator on this host."""

from __future__ import annotations

import socket
import urllib.parse
import urllib.request
from collections.abc import Iterator

import pytest

from tests.system.conftest import Repository, Start, eventually

pytest.importorskip("gcsfs", reason="needs the driver: pip install tensorbus[gcs]")
emulator = pytest.importorskip("gcp_storage_emulator.server", reason="needs pip install gcp-storage-emulator")

TIMES = """
def execute(self, requests):
    return [respond(request, values(request) * %d) for request in requests]
"""


@pytest.fixture
def endpoint() -> Iterator[str]:
    """Of an emulator with an empty bucket "bucket"."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket="bucket")
    server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop()


def put(repository: Repository, endpoint: str) -> None:
    """All files of the repository, below "models"."""
    for path in repository.path.rglob("*"):
        if path.is_file():
            name = urllib.parse.quote(f"models/{path.relative_to(repository.path)}", safe="")
            url = f"{endpoint}/upload/storage/v1/b/bucket/o?uploadType=media&name={name}"
            headers = {"Content-Type": "application/octet-stream"}
            urllib.request.urlopen(urllib.request.Request(url, path.read_bytes(), headers), timeout=10).close()


def test_models_are_loaded_from_a_bucket_and_again_when_an_object_has_changed(
    repository: Repository, endpoint: str, start: Start
) -> None:
    directory = repository.add("m", TIMES % 2)
    put(repository, endpoint)
    environ = {"STORAGE_EMULATOR_HOST": endpoint, "NO_GCE_CHECK": "true"}
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1")
    server = start(*flags, path="gs://bucket/models", environ=environ)
    assert server.post("m", [1.0]).data == [2.0]
    model = directory / "model.py"
    model.write_text(model.read_text().replace("* 2", "* 5"))
    repository.add("new", TIMES % 3)
    put(repository, endpoint)
    eventually(lambda: server.post("m", [1.0]).data == [5.0], what="the changed model is loaded")
    eventually(lambda: server.post("new", [1.0]).status == 200, what="the new model is loaded")
