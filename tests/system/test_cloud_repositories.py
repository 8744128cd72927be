"""Model repositories in an object store: a real server, a real driver, and an S3 server on this host."""

from __future__ import annotations

import json
import os
import signal
import socket
import urllib.request
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.system.conftest import Repository, Server, Start, eventually

KEYS = {"aws_access_key_id": "key-of-test", "aws_secret_access_key": "secret-of-test", "region_name": "us-east-1"}
ENVIRON = {
    "AWS_ACCESS_KEY_ID": "key-of-test",
    "AWS_SECRET_ACCESS_KEY": "secret-of-test",
    "AWS_DEFAULT_REGION": "us-east-1",
}

TIMES = """
def execute(self, requests):
    return [respond(request, values(request) * %d) for request in requests]
"""


class Bucket:
    """A bucket whose ``url`` is a model repository; models are made in a directory and put there."""

    def __init__(self, s3_endpoint: str, name: str, source: Repository) -> None:
        self._client = boto3.client("s3", endpoint_url=f"http://{s3_endpoint}", **KEYS)
        self._client.create_bucket(Bucket=name)
        self._name = name
        self._source = source
        self.url = f"s3://{s3_endpoint}/{name}/models"

    def add(self, name: str, code: str, **options: Any) -> None:
        self._source.add(name, code, **options)
        self.sync()

    def change(self, name: str, code: str) -> None:
        (self._source.path / name / "1" / "model.py").unlink()
        (self._source.path / name / "1").rmdir()
        self.add(name, code, config="")

    def sync(self) -> None:
        for path in self._source.path.rglob("*"):
            if path.is_file():
                self.put(str(path.relative_to(self._source.path)), path.read_bytes())

    def put(self, path: str, content: bytes) -> None:
        self._client.put_object(Bucket=self._name, Key=f"models/{path}", Body=content)

    def remove(self, name: str) -> None:
        found = self._client.list_objects_v2(Bucket=self._name, Prefix=f"models/{name}/")["Contents"]
        for one in found:
            self._client.delete_object(Bucket=self._name, Key=one["Key"])


@pytest.fixture
def bucket(s3_endpoint: str, tmp_path: Path, request: pytest.FixtureRequest) -> Bucket:
    (tmp_path / "source").mkdir()
    return Bucket(s3_endpoint, f"bucket{abs(hash(request.node.name))}", Repository(tmp_path / "source"))


def ask_for_keys(s3_endpoint: str, after: int) -> None:
    """From then on only those are served that have the key of a user."""
    url = f"http://{s3_endpoint}/moto-api/reset-auth"
    headers = {"Content-Type": "text/plain"}
    urllib.request.urlopen(urllib.request.Request(url, str(after).encode(), headers), timeout=10)


def load(server: Server, model: str) -> Any:
    return server.call("POST", f"/v2/repository/models/{model}/load", b"{}")


def copies(server: Server) -> list[str]:
    """Files of models that lie in the server's directory."""
    return sorted(path.parts[-3] for path in server.temporary.glob("*/repositories/*/models/*/*/model.py"))


def test_models_are_loaded_from_a_bucket_and_again_when_an_object_has_changed(
    bucket: Bucket, repository: Repository, start: Start
) -> None:
    bucket.add("m", TIMES % 2)
    bucket.add("other", TIMES % 3)
    repository.add("local")
    server = start(
        f"--model-repository={bucket.url}",
        "--model-control-mode=explicit",
        "--load-model=m",
        "--load-model=local",
        environ=ENVIRON,
    )
    assert server.post("m", [1.0]).data == [2.0]
    assert server.post("local", [1.0]).data == [1.0]
    assert copies(server) == ["m"]
    assert set(server.index()) == {"local:1", "m:1", "other:"}

    bucket.change("m", TIMES % 5)
    assert load(server, "m").status == 200
    assert server.post("m", [1.0]).data == [5.0]
    assert load(server, "m").status == 200
    assert len(server.lines("successfully loaded 'm'")) == 2  # nothing had changed

    bucket.put("m/../../escaped", b"x")
    answer = load(server, "m")
    assert (answer.status, answer.error) == (500, "failed to load 'm', failed to poll from model repository")
    assert server.lines("Poll failed for model directory 'm'", "'m/../../escaped' cannot be a file", bucket.url)
    assert server.post("m", [1.0]).data == [5.0]

    assert load(server, "other").status == 200
    assert copies(server) == ["m", "other"]
    server.call("POST", "/v2/repository/models/other/unload", b"{}")
    eventually(lambda: copies(server) == ["m"], what="the copy of the unloaded model is removed")
    assert load(server, "other").status == 200
    assert server.post("other", [1.0]).data == [3.0]
    assert "secret-of-test" not in server.text()


def test_in_poll_mode_what_changes_in_the_bucket_is_loaded_and_unloaded(
    bucket: Bucket, repository: Repository, start: Start
) -> None:
    bucket.add("m", TIMES % 2)
    repository.add("m", TIMES % 7)
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1", "--model-namespacing=true")
    server = start(f"--model-repository={bucket.url}", *flags, environ=ENVIRON)

    def answer(model: str) -> list[float] | None:
        given = server.post(model, [1.0])
        return given.data if given.status == 200 else None

    bucket.add("new", TIMES % 3)
    eventually(lambda: answer("new") == [3.0], what="the new model is loaded")
    bucket.change("new", TIMES % 5)
    eventually(lambda: answer("new") == [5.0], what="the changed model is loaded")
    bucket.remove("new")
    eventually(lambda: answer("new") is None, what="the removed model is unloaded")
    assert len(server.lines("fetched model 'm'")) == 1
    assert sorted(copies(server)) == ["m"]


def test_a_repository_without_access_is_refused_at_the_start(
    bucket: Bucket, s3_endpoint: str, start: Start, tmp_path: Path
) -> None:
    bucket.add("m", TIMES % 2)
    (tmp_path / "no_driver").mkdir()
    (tmp_path / "no_driver" / "s3fs.py").write_text("raise ImportError('No module named s3fs')")
    no_bucket = f"s3://{s3_endpoint}/nobody-has-that/models"
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        hanging = f"s3://127.0.0.1:{silent.getsockname()[1]}/bucket/models"
        waits = start(wait=False, path=hanging, environ=ENVIRON)
        refused = {
            no_bucket: start(wait=False, path=no_bucket, environ=ENVIRON),
            bucket.url: start(
                wait=False, path=bucket.url, environ=ENVIRON | {"PYTHONPATH": str(tmp_path / "no_driver")}
            ),
        }
        for url, server in refused.items():
            assert server.wait() == 1
            assert server.lines("error: creating server: Internal - "), server.text()
            assert url in server.text() or url == bucket.url
            assert "secret-of-test" not in server.text()
        assert "The specified bucket does not exist" in refused[no_bucket].text()
        assert "To enable, install tensorbus[s3]" in refused[bucket.url].text()

        connection, _ = silent.accept()
        waits.signal(signal.SIGTERM)
        assert waits.wait() in (0, 1)
        connection.close()


def test_a_wrong_key_is_refused_and_a_file_of_credentials_has_the_right_one(
    bucket: Bucket, s3_endpoint: str, start: Start, tmp_path: Path
) -> None:
    bucket.add("m", TIMES % 2)
    mount = tmp_path / "mount"
    mount.mkdir()
    iam = boto3.client("iam", endpoint_url=f"http://{s3_endpoint}", **KEYS)
    iam.create_user(UserName="reader")
    every = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    iam.put_user_policy(UserName="reader", PolicyName="all", PolicyDocument=json.dumps(every))
    key = iam.create_access_key(UserName="reader")["AccessKey"]
    right = {"key_id": key["AccessKeyId"], "secret_key": key["SecretAccessKey"], "region": "us-east-1"}
    file = tmp_path / "credentials.json"
    file.write_text(json.dumps({"s3": {"": right | {"key_id": "wrong"}, bucket.url: right}}))

    ask_for_keys(s3_endpoint, after=0)
    try:
        server = start(wait=False, path=bucket.url, environ=ENVIRON)
        assert server.wait() == 1
        assert server.lines("Unable to create S3 filesystem client. Check account credentials.", bucket.url)
        assert "secret-of-test" not in server.text()

        environ = {"TRITON_CLOUD_CREDENTIAL_PATH": str(file), "TRITON_AWS_MOUNT_DIRECTORY": str(mount)}
        server = start(path=bucket.url, environ=environ)
        assert server.post("m", [1.0]).data == [2.0]
        assert len(list(mount.glob("tensorbus-*/0/models/m/1/model.py"))) == 1
        server.process.kill()
        server.wait()
        assert os.listdir(mount)

        server = start(path=bucket.url, environ=environ)
        assert len(os.listdir(mount)) == 1
        assert server.terminate() == 0
        assert not os.listdir(mount)
    finally:
        ask_for_keys(s3_endpoint, after=1_000_000)
