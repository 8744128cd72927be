"""The local copy of a repository, against a real store and its real driver."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import boto3
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.stamps import fingerprint
from protocol.errors import InternalError
from tensorbus.cloud_location import CloudSettings, locate
from tensorbus.cloud_mirror import Listing, Mirror, NotAFile, plan
from tensorbus.cloud_objects import Object, Objects

SECRETS = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}


class Bucket:
    def __init__(self, s3_endpoint: str, name: str) -> None:
        self.client = boto3.client("s3", endpoint_url=f"http://{s3_endpoint}", **SECRETS)
        self.client.create_bucket(Bucket=name)
        self.name = name

    def put(self, **objects: str) -> None:
        for key, content in objects.items():
            self["r/" + key] = content

    def __setitem__(self, key: str, content: str) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=content.encode())

    def __delitem__(self, key: str) -> None:
        self.client.delete_object(Bucket=self.name, Key=key)


@pytest.fixture
def bucket(s3_endpoint: str, request: pytest.FixtureRequest) -> Bucket:
    return Bucket(s3_endpoint, f"b{abs(hash(request.node.name))}")


@pytest.fixture
def mirror(bucket: Bucket, s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mirror:
    for name, value in SECRETS.items():
        monkeypatch.setenv({"region_name": "AWS_DEFAULT_REGION"}.get(name, name.upper()), value)
    return Mirror(Objects(locate(f"s3://{s3_endpoint}/{bucket.name}/r"), CloudSettings()), str(tmp_path / "mirror"))


def files(mirror: Mirror) -> dict[str, str]:
    root = Path(mirror.path)
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def directories(mirror: Mirror) -> set[str]:
    root = Path(mirror.path)
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir()}


def fetched(mirror: Mirror, model: str) -> dict[str, str]:
    mirror.look([model])
    mirror.localise(model)
    assert not os.listdir(f"{mirror.path}/../incoming")
    return files(mirror)


def test_models_are_known_before_any_of_their_files_is_here(bucket: Bucket, mirror: Mirror) -> None:
    bucket["r/a/config.pbtxt"] = bucket["r/b/1/model.py"] = bucket["r/readme"] = "x"
    mirror.look_at_names()
    assert directories(mirror) == {"a", "b"}
    mirror.look()
    assert files(mirror) == {}
    mirror.localise("b")
    assert files(mirror) == {"b/1/model.py": "x"}


def test_what_has_changed_is_fetched_and_nothing_else(bucket: Bucket, mirror: Mirror) -> None:
    bucket["r/m/config.pbtxt"], bucket["r/m/1/model.py"], bucket["r/m/1/old/w"] = "config", "one", "w"
    bucket["r/m/2/"] = ""
    assert fetched(mirror, "m") == {"m/config.pbtxt": "config", "m/1/model.py": "one", "m/1/old/w": "w"}
    assert directories(mirror) == {"m", "m/1", "m/1/old", "m/2"}
    first = fingerprint(f"{mirror.path}/m")
    config = os.stat(f"{mirror.path}/m/config.pbtxt")

    os.mkdir(f"{mirror.path}/m/1/__pycache__")
    bucket["r/m/config.pbtxt"] = "config"  # the same once more
    fetched(mirror, "m")
    assert fingerprint(f"{mirror.path}/m") == first

    bucket["r/m/1/model.py"], bucket["r/m/3/model.py"] = "two", "three"  # in the same second, and of the same size
    del bucket["r/m/1/old/w"]
    del bucket["r/m/2/"]
    assert fetched(mirror, "m") == {"m/config.pbtxt": "config", "m/1/model.py": "two", "m/3/model.py": "three"}
    assert directories(mirror) == {"m", "m/1", "m/1/__pycache__", "m/3"}
    assert fingerprint(f"{mirror.path}/m") != first
    assert os.stat(f"{mirror.path}/m/config.pbtxt").st_ino == config.st_ino


def test_what_is_open_stays_readable_as_it_was(bucket: Bucket, mirror: Mirror) -> None:
    bucket["r/m/1/w"] = "one"
    fetched(mirror, "m")
    with open(f"{mirror.path}/m/1/w") as file:
        bucket["r/m/1/w"] = "two"
        fetched(mirror, "m")
        assert file.read() == "one"


def test_a_file_may_become_a_directory_and_a_directory_a_file(bucket: Bucket, mirror: Mirror) -> None:
    bucket["r/m/a"] = bucket["r/m/b/c"] = "x"
    fetched(mirror, "m")
    del bucket["r/m/a"]
    del bucket["r/m/b/c"]
    bucket["r/m/a/c"] = bucket["r/m/b"] = "y"
    assert fetched(mirror, "m") == {"m/a/c": "y", "m/b": "y"}


def test_a_model_that_is_gone_from_the_store_is_gone_here(bucket: Bucket, mirror: Mirror) -> None:
    bucket["r/a/1/w"] = bucket["r/b/1/w"] = bucket["r/c/1/w"] = "x"
    mirror.look()
    for model in "abc":
        mirror.localise(model)
    del bucket["r/a/1/w"]
    mirror.look(["a"])
    assert directories(mirror) == {"b", "b/1", "c", "c/1"}
    del bucket["r/b/1/w"]
    mirror.look_at_names()
    assert directories(mirror) == {"c", "c/1"}


def test_no_object_gets_out_of_its_model(bucket: Bucket, mirror: Mirror, tmp_path: Path) -> None:
    bucket["r/m/1/w"] = "x"
    fetched(mirror, "m")
    bucket["r/m/1/w"] = "evil"
    for key in ("m/../../x", "m/..", "m/./x", "m//x", "m/a/../../../x"):
        bucket[f"r/{key}"] = "evil"
        mirror.look()
        with pytest.raises(InternalError, match=rf"the object '{key}' cannot be .*s3://.*/{bucket.name}/r"):
            mirror.localise("m")
        del bucket[f"r/{key}"]
    assert files(mirror) == {"m/1/w": "x"}
    assert [path.name for path in tmp_path.iterdir()] == ["mirror"]


def test_no_object_is_a_model_that_is_elsewhere(bucket: Bucket, mirror: Mirror, tmp_path: Path) -> None:
    bucket["r/../1/model.py"] = bucket["r//1/model.py"] = bucket["r/./1/model.py"] = "x"
    bucket[f"r/{'x' * 256}/1/model.py"] = "x"
    mirror.look()
    mirror.look_at_names()
    mirror.look(["..", ".", "", "a/b"])
    assert directories(mirror) == set()
    assert [path.name for path in tmp_path.iterdir()] == ["mirror"]


def test_the_disk_is_given_back_when_a_model_stays_unloaded(bucket: Bucket, mirror: Mirror) -> None:
    bucket["r/a/1/w"] = bucket["r/b/1/w"] = "x"
    fetched(mirror, "a")
    fetched(mirror, "b")
    mirror.forget({"a"})
    assert set(files(mirror)) == {"a/1/w", "b/1/w"}
    fetched(mirror, "a")
    mirror.forget({"a"})
    assert set(files(mirror)) == {"a/1/w", "b/1/w"}
    mirror.forget({"a"})
    assert set(files(mirror)) == {"b/1/w"}
    assert directories(mirror) == {"a", "b", "b/1"}
    assert set(fetched(mirror, "a")) == {"a/1/w", "b/1/w"}


def test_what_cannot_be_written_is_told_with_model_and_repository(bucket: Bucket, mirror: Mirror) -> None:
    bucket[f"r/m/{'x' * 300}"] = "x"
    mirror.look()
    with pytest.raises(
        InternalError, match=r"model 'm' of s3://.*/r cannot be copied to this host: File name too long"
    ):
        mirror.localise("m")
    assert not os.listdir(f"{mirror.path}/../incoming")


def test_after_the_end_nothing_is_fetched(bucket: Bucket, mirror: Mirror) -> None:
    bucket["r/m/1/w"] = "x"
    mirror.look()
    mirror.stop()
    with pytest.raises(InternalError, match="the server is stopping"):
        mirror.localise("m")


NAMES = st.lists(st.sampled_from(["a", "b", "c", ".."]), min_size=1, max_size=3).map("/".join)
LISTINGS = st.dictionaries(NAMES, st.sampled_from("123"), max_size=6)


def listing(tags: dict[str, str]) -> Listing:
    return {path: Object(f"m/{path}", 1, tag) for path, tag in tags.items()}


@given(LISTINGS, LISTINGS)
def test_a_plan_makes_one_listing_of_the_other(before: dict[str, str], after: dict[str, str]) -> None:
    def apply(held: dict[str, str], wanted: dict[str, str]) -> dict[str, str]:
        change = plan(listing(held), listing(wanted))
        kept = {path: tag for path, tag in held.items() if path not in change.remove}
        return kept | {one.path.removeprefix("m/"): one.tag for one in change.fetch}

    try:
        held = apply({}, before)
        assert apply(held, after) == after
        assert not any(".." in path for path in after)
        again: Any = plan(listing(after), listing(after))
        assert (again.fetch, again.remove) == ([], [])
    except NotAFile:
        paths = [*before, *after]
        assert any(".." in path for path in paths) or any(f"{a}/" in b for a in paths for b in paths)
