"""The objects of one model repository in a store, listed and fetched by the fsspec driver of its kind.

The drivers are optional. Their coroutines run in fsspec's own event loop and thread, so that a fetch can be given up.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import CancelledError, Future, wait
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from protocol.errors import InternalError
from tensorbus.cloud_location import CloudSettings, Location, driver_options

T = TypeVar("T")

_FETCHES = 4  # objects at once
_PARTS = 4  # of one object at once; with those above, the most that lies in memory is 256 MiB
_PART_BYTES = 16 << 20
_PROGRESS_S = 5.0
_EXTRAS = {"s3": "s3", "gs": "gcs", "as": "azure"}
_NAMES = {"s3": "S3", "gs": "GCS", "as": "AS"}  # Triton's
_S3_LIMITS = {"max_concurrency": _PARTS, "default_block_size": _PART_BYTES}
_OF_THIS_HOST = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}


class Object(NamedTuple):
    """``path`` is below the repository; one that ends in "/" stands for a directory. ``tag`` is another one whenever
    the content is, if the store has such a thing."""

    path: str
    nbytes: int
    tag: str = ""
    modified_s: int = 0

    def is_as(self, other: Object | None) -> bool:
        """Whether the content is the same. By its tag if it has one: its time changes also when it is written anew."""
        if other is None or (self.path, self.nbytes, self.tag) != (other.path, other.nbytes, other.tag):
            return False
        return bool(self.tag) or self.modified_s == other.modified_s


class Objects:
    """Calls may come from any thread that may block. All raise InternalError; OSError is for this host's own files."""

    def __init__(self, location: Location, settings: CloudSettings) -> None:
        self.location = location
        self._settings = settings
        self._lock = threading.Lock()
        self._running: set[Future[Any]] = set()
        self._stopped = False
        self._driver = self._open()

    def _open(self, **further: Any) -> Any:
        scheme = self.location.scheme
        try:
            kind = _driver(scheme)
        except ImportError as error:
            raise InternalError(
                f"{scheme}:// file-system not supported. To enable, install tensorbus[{_EXTRAS[scheme]}] ({error})"
            ) from None
        options = driver_options(self.location, self._settings) | further
        if scheme == "s3":
            options |= _S3_LIMITS
        try:
            return kind(use_listings_cache=False, skip_instance_cache=True, **options)
        except Exception as error:
            raise self._refused(error) from None

    def names(self) -> list[str]:
        """Of the directories at the top."""
        root = self.location.root

        async def names(driver: Any) -> list[str]:
            try:
                found = await driver._ls(root, detail=True)
            except FileNotFoundError:  # the bucket, or just nothing below the path; only the former is told by _find
                found = (await driver._find(root, detail=True)).values()
            return [str(one["name"]).rstrip("/").rpartition("/")[2] for one in found if one["type"] == "directory"]

        return self._try(names)

    def list(self, model: str = "") -> list[Object]:
        """All objects, or those of one model."""
        root = self.location.root
        below = f"{root}/{model}" if model else root

        async def find(driver: Any) -> list[Object]:
            infos = await driver._find(below, detail=True)
            return [_object(root, info) for name, info in infos.items() if name.startswith(f"{below}/")]

        return self._try(find)

    def fetch(self, targets: Iterable[tuple[Object, str]], progress: Callable[[], None]) -> None:
        """Each into its file. ``progress`` is called every few seconds meanwhile."""
        root = self.location.root

        async def fetch(driver: Any) -> None:
            gate = asyncio.Semaphore(_FETCHES)

            async def one(object: Object, target: str) -> None:
                async with gate:
                    await driver._get_file(f"{root}/{object.path}", target)

            async with asyncio.TaskGroup() as group:
                for object, target in targets:
                    group.create_task(one(object, target))

        self._try(fetch, progress)

    def stop(self) -> None:
        """Gives up what is being fetched."""
        with self._lock:
            self._stopped = True
            for running in self._running:
                running.cancel()

    # --- the driver ---------------------------------------------------------------------------------------------------

    def _try(self, work: Callable[[Any], Coroutine[Any, Any, T]], progress: Callable[[], None] = lambda: None) -> T:
        """If access is refused, once more with what the credentials are now; if there are none, without."""
        try:
            return self._run(work, progress)
        except Exception as error:
            cause = _first(error)
        if not isinstance(cause, PermissionError) and type(cause).__name__ != "NoCredentialsError":
            raise self._refused(cause)
        anonymous = {} if isinstance(cause, PermissionError) else {"anon": True}
        self._driver = self._open(**anonymous)
        try:
            return self._run(work, progress)
        except Exception as error:
            raise self._refused(_first(error)) from None

    def _run(self, work: Callable[[Any], Coroutine[Any, Any, T]], progress: Callable[[], None]) -> T:
        driver = self._driver
        with self._lock:
            if self._stopped:
                raise CancelledError
            running = asyncio.run_coroutine_threadsafe(work(driver), driver.loop)
            self._running.add(running)
        try:
            while not wait([running], _PROGRESS_S).done:
                progress()
            return running.result()
        finally:
            with self._lock:
                self._running.discard(running)

    def _refused(self, cause: BaseException) -> Exception:
        if isinstance(cause, InternalError):
            return cause
        if isinstance(cause, CancelledError):
            return InternalError(f"model repository {self.location.url}: the server is stopping")
        if isinstance(cause, OSError) and cause.errno in _OF_THIS_HOST:
            return cause
        kind = _NAMES[self.location.scheme]
        return InternalError(
            f"Unable to create {kind} filesystem client. Check account credentials. "
            f"Exception: '{type(cause).__name__}' Message: '{cause}' (model repository {self.location.url})"
        )


def _driver(scheme: str) -> Any:
    if scheme == "s3":
        from s3fs import S3FileSystem as Driver
    elif scheme == "gs":
        from gcsfs import GCSFileSystem as Driver
    else:
        from adlfs import AzureBlobFileSystem as Driver
    return Driver


def _first(error: BaseException) -> BaseException:
    """Of what a task group raises."""
    while isinstance(found := getattr(error, "exceptions", None), tuple):
        error = found[0]
    return error


def _object(root: str, info: dict[str, Any]) -> Object:
    name = str(info["name"]) + ("/" if info["type"] == "directory" and not info["name"].endswith("/") else "")
    modified = info.get("LastModified") or info.get("last_modified") or info.get("mtime")
    return Object(
        name[len(root) + 1 :],
        info["size"] or 0,
        str(info.get("ETag") or info.get("etag") or ""),
        int(modified.timestamp()) if isinstance(modified, datetime) else 0,
    )
