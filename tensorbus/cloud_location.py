"""Model repositories in object stores: what their addresses mean, and the credentials that go with each.

Addresses, variables and the file of credentials are those of Triton. Nothing here talks to a store.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from protocol.errors import InternalError

_SCHEMES = ("s3", "gs", "as")
_OWN_S3 = re.compile(r"(https?://)?([0-9a-zA-Z\-.]+)(:[0-9]+)?/(.*)")
_AZURE_HOST = ".blob.core.windows.net"
_MOUNTS = {
    "s3": "TRITON_AWS_MOUNT_DIRECTORY",
    "gs": "TRITON_GCS_MOUNT_DIRECTORY",
    "as": "TRITON_AZURE_MOUNT_DIRECTORY",
}


@dataclass(frozen=True)
class CloudSettings:
    """What the environment says of object stores. The variables of AWS and Google are read by their own libraries."""

    credential_file: str = ""
    mounts: Mapping[str, str] = field(default_factory=dict)  # by scheme: where local copies are made
    azure_account: str = ""
    azure_key: str = field(default="", repr=False)


def cloud_settings(environ: Mapping[str, str]) -> CloudSettings:
    return CloudSettings(
        environ.get("TRITON_CLOUD_CREDENTIAL_PATH", ""),
        {scheme: environ[name] for scheme, name in _MOUNTS.items() if environ.get(name)},
        environ.get("AZURE_STORAGE_ACCOUNT", ""),
        environ.get("AZURE_STORAGE_KEY", "") if environ.get("AZURE_STORAGE_AUTH_TYPE", "key") == "key" else "",
    )


class Location(NamedTuple):
    """``root`` is the bucket or container with the path in it; ``host`` an endpoint of S3, or an account of Azure."""

    url: str
    scheme: str
    host: str
    root: str


def is_cloud(repository: str) -> bool:
    return repository.partition("://")[0] in _SCHEMES and "://" in repository


def locate(url: str) -> Location:
    """Raises InternalError for an address without a bucket."""
    scheme, _, rest = url.partition("://")
    host = ""
    if scheme == "s3" and (own := _OWN_S3.fullmatch(rest)) and (own[1] or own[3]):
        host = f"{own[1] or 'http://'}{own[2]}{own[3] or ''}"
        rest = own[4]
    elif scheme == "as":
        host, _, rest = rest.lstrip("/").partition("/")
        host = host.removesuffix(_AZURE_HOST)
    root = "/".join(filter(None, rest.split("/")))
    if not root or (scheme == "as" and not host):
        raise InternalError(
            f"Invalid azure storage path: {url}" if scheme == "as" else f"No bucket name found in path: {url}"
        )
    return Location(url, scheme, host, root)


def driver_options(location: Location, settings: CloudSettings) -> dict[str, Any]:
    """Arguments for the fsspec driver of the location's scheme. Reads the file of credentials, if there is one.

    Raises InternalError, which says nothing of the credentials themselves."""
    found = _credential(location, settings) if settings.credential_file else None
    if location.scheme == "s3":
        return _s3_options(location, found)
    if location.scheme == "gs":
        return {"token": found} if found else {}
    return _azure_options(location, settings, found)


def _s3_options(location: Location, found: Any) -> dict[str, Any]:
    given = found or {}
    options: dict[str, Any] = {
        "config_kwargs": {"connect_timeout": 10, "read_timeout": 30, "retries": {"max_attempts": 1}}
    }
    if location.host:  # a store of one's own seldom has a name for each bucket
        options["endpoint_url"] = location.host
        options["config_kwargs"]["s3"] = {"addressing_style": "path"}
    if given.get("secret_key") and given.get("key_id"):
        options |= {"key": given["key_id"], "secret": given["secret_key"]}
        if given.get("session_token"):
            options["token"] = given["session_token"]
    elif given.get("profile"):
        options["profile"] = given["profile"]
    if given.get("region"):
        options["client_kwargs"] = {"region_name": given["region"]}
    return options


def _azure_options(location: Location, settings: CloudSettings, found: Any) -> dict[str, Any]:
    """Without a key the driver asks for the identity that the host has."""
    if found is None:
        account, key = settings.azure_account, settings.azure_key
    else:
        account, key = found.get("account_str", ""), found.get("account_key", "")
    options = {"account_name": account or location.host}
    return {**options, "account_key": key} if key else {**options, "anon": False}


def _credential(location: Location, settings: CloudSettings) -> Any:
    """The entry of the longest name that the address begins with."""
    try:
        with open(settings.credential_file, encoding="utf-8") as file:
            entries = json.load(file).get(location.scheme) or {}
        found = max((name for name in entries if location.url.startswith(name)), key=len, default=None)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not JSON of the form that is expected"
        raise InternalError(f"failed to read the cloud credentials in {settings.credential_file}: {why}") from None
    if found is None:
        raise InternalError(f"Cannot match credential for path  {location.url}")
    entry = entries[found]
    if not isinstance(entry, str if location.scheme == "gs" else dict):
        raise InternalError(f"the cloud credential '{found}' in {settings.credential_file} is not of the form expected")
    return entry


def mount_directory(scheme: str, settings: CloudSettings) -> str:
    """Where the operator wants local copies, "" for the server's own directory. Raises InternalError."""
    path = settings.mounts.get(scheme, "")
    if path and not (os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)):
        raise InternalError(f"{_MOUNTS[scheme]} must name a directory that exists and can be written: {path}")
    return path
