import json
from pathlib import Path

import pytest

from protocol.errors import InternalError
from tensorbus.cloud_location import (
    CloudSettings,
    Location,
    cloud_settings,
    driver_options,
    is_cloud,
    locate,
    mount_directory,
)

ADDRESSES = {
    "s3://bucket": ("", "bucket"),
    "s3://bucket/a/path/": ("", "bucket/a/path"),
    "s3://bucket//a///path": ("", "bucket/a/path"),
    "s3://host:9000/bucket/path": ("http://host:9000", "bucket/path"),
    "s3://10.0.0.1:9000/bucket": ("http://10.0.0.1:9000", "bucket"),
    "s3://http://host:9000/bucket/path": ("http://host:9000", "bucket/path"),
    "s3://https://host:9000/bucket/path": ("https://host:9000", "bucket/path"),
    "s3://https://host/bucket/path": ("https://host", "bucket/path"),
    "gs://bucket/path": ("", "bucket/path"),
    "as://account/container/path": ("account", "container/path"),
    "as://account.blob.core.windows.net/container": ("account", "container"),
}


@pytest.mark.parametrize("url", ADDRESSES)
def test_an_address_names_host_bucket_and_path(url: str) -> None:
    host, root = ADDRESSES[url]
    assert is_cloud(url)
    assert locate(url) == Location(url, url[:2], host, root)


@pytest.mark.parametrize("url", ["s3://", "s3:///", "s3://host:9000/", "gs://", "as://account", "as:///container"])
def test_an_address_without_a_bucket_is_refused(url: str) -> None:
    with pytest.raises(InternalError, match=url):
        locate(url)


@pytest.mark.parametrize("path", ["/models", "models", "s3", "./s3:/x", "ftp://host/path", "file:///models"])
def test_a_path_is_no_address(path: str) -> None:
    assert not is_cloud(path)


def credentials(tmp_path: Path, content: object) -> CloudSettings:
    file = tmp_path / "credentials.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return CloudSettings(str(file))


def test_of_the_credentials_in_a_file_those_of_the_longest_name_count(tmp_path: Path) -> None:
    entries = {
        "s3": {
            "": {"secret_key": "s0", "key_id": "k0", "region": "r0", "session_token": "", "profile": ""},
            "s3://mine": {"secret_key": "s1", "key_id": "k1", "session_token": "t1"},
            "s3://mine/too": {"profile": "p2"},
        },
        "gs": {"gs://bucket": "/key.json"},
    }
    settings = credentials(tmp_path, entries)

    def options(url: str) -> dict[str, object]:
        found = driver_options(locate(url), settings)
        return {name: value for name, value in found.items() if name != "config_kwargs"}

    assert options("s3://other/mine") == {"key": "k0", "secret": "s0", "client_kwargs": {"region_name": "r0"}}
    assert options("s3://mine/models") == {"key": "k1", "secret": "s1", "token": "t1"}
    assert options("s3://mine/too/models") == {"profile": "p2"}
    assert options("gs://bucket/models") == {"token": "/key.json"}
    with pytest.raises(InternalError, match="Cannot match credential for path  gs://other"):
        options("gs://other")
    with pytest.raises(InternalError, match="Cannot match credential for path  as://a/c"):
        options("as://a/c")


@pytest.mark.parametrize("content", ["", "[]", '{"s3": 1}', '{"s3": {"": "no dict"}}', '"s3"'])
def test_a_file_of_another_form_is_refused_and_not_shown(tmp_path: Path, content: str) -> None:
    with pytest.raises(InternalError, match=r"credentials?.*credentials\.json") as error:
        driver_options(locate("s3://bucket"), credentials(tmp_path, content))
    assert "no dict" not in str(error.value)


def test_a_file_that_is_not_there_is_told() -> None:
    with pytest.raises(InternalError, match=r"/nowhere\.json: No such file or directory"):
        driver_options(locate("s3://bucket"), CloudSettings("/nowhere.json"))


def test_a_host_of_ones_own_has_its_buckets_in_the_path() -> None:
    options = driver_options(locate("s3://host:9000/bucket"), CloudSettings())
    assert options["endpoint_url"] == "http://host:9000"
    assert options["config_kwargs"]["s3"] == {"addressing_style": "path"}
    assert "endpoint_url" not in driver_options(locate("s3://bucket"), CloudSettings())


def test_azure_has_its_account_from_the_environment_or_the_address() -> None:
    key = cloud_settings({"AZURE_STORAGE_ACCOUNT": "mine", "AZURE_STORAGE_KEY": "secret"})
    assert driver_options(locate("as://account/c"), key) == {"account_name": "mine", "account_key": "secret"}
    identity = cloud_settings({"AZURE_STORAGE_KEY": "secret", "AZURE_STORAGE_AUTH_TYPE": "managed_identity"})
    assert driver_options(locate("as://account/c"), identity) == {"account_name": "account", "anon": False}
    assert "secret" not in repr(key)


def test_the_place_of_local_copies_must_be_there(tmp_path: Path) -> None:
    settings = cloud_settings({"TRITON_AWS_MOUNT_DIRECTORY": str(tmp_path), "TRITON_GCS_MOUNT_DIRECTORY": "/nowhere"})
    assert mount_directory("s3", settings) == str(tmp_path)
    assert mount_directory("as", settings) == ""
    with pytest.raises(InternalError, match="TRITON_GCS_MOUNT_DIRECTORY must name a directory"):
        mount_directory("gs", settings)
