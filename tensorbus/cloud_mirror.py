"""The local copy of one model repository in an object store: which models it has, and the files of those needed here.

The names of models are directories at once; their files are fetched model by model, only what has changed. A model's
files change all together, after the last one has been fetched, each by a rename: what has an old one open goes on
reading that.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import time
import zlib
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import structlog

from protocol.errors import InternalError
from tensorbus.cloud_objects import Object, Objects

log = structlog.get_logger()

_MIB = 1 << 20
_LONGEST_NAME = 255
_NO_NAMES = frozenset({"", ".", ".."})

Listing = dict[str, Object]  # by path below the model


class NotAFile(Exception):
    """An object's name cannot be that of a file below its model."""


class Changes(NamedTuple):
    """What makes one listing of a model of another one."""

    fetch: list[Object]
    remove: list[str]  # files, below the model
    directories: set[str]  # all that there are to be, below the model


def plan(held: Listing, listed: Listing) -> Changes:
    """Pure. Raises NotAFile."""
    for path, one in listed.items():
        if _NO_NAMES & set(path.rstrip("/").split("/")) or "\0" in path:
            raise NotAFile(f"the object '{one.path}' cannot be a file of a model")
    files = {path: one for path, one in listed.items() if not path.endswith("/")}
    directories = {parent for path in listed for parent in _parents(path)}
    both = sorted(directories & files.keys())
    if both:
        raise NotAFile(f"the object '{files[both[0]].path}' is a directory, too")
    return Changes(
        [one for path, one in files.items() if not one.is_as(held.get(path))],
        [path for path in held if path not in files and not path.endswith("/")],
        directories,
    )


def _parents(path: str) -> Iterable[str]:
    """Directories on the way to a file; the one itself of a path that ends in "/"."""
    parts = path.split("/")[:-1]
    return ("/".join(parts[: n + 1]) for n in range(len(parts)))


class Mirror:
    """Invariant: what ``_held`` says of a model lies below its directory; one that is not in it has no files there.

    Calls block, and may come from any thread; while a model is fetched, the others can be looked at."""

    def __init__(self, objects: Objects, directory: str) -> None:
        """``directory`` is private, and made here."""
        self._objects = objects
        self.url = objects.location.url
        self.path = os.path.join(directory, "models")
        self._incoming = os.path.join(directory, "incoming")
        self._listed: dict[str, Listing] = {}
        self._held: dict[str, Listing] = {}
        self._idle: set[str] = set()
        self._lock = threading.Lock()  # for all of the above; held for as long as a directory takes
        self._fetching: dict[str, threading.Lock] = {}  # by model; held for as long as it is fetched
        os.makedirs(self.path, 0o700)
        os.makedirs(self._incoming, 0o700)

    def stop(self) -> None:
        self._objects.stop()

    # --- what there is ----------------------------------------------------------------------------------------------

    def look_at_names(self) -> None:
        names = self._objects.names()
        with self._lock:
            self._name(names)

    def look(self, models: Sequence[str] | None = None) -> None:
        """At the objects of some models, or of all."""
        if models is None:
            listed = _by_model(self._objects.list())
            with self._lock:
                self._listed = listed
                self._name(listed)
        for model in models or ():
            self._look_at(model)

    def _look_at(self, model: str) -> None:
        found = _by_model(self._objects.list(model)).get(model) if _is_name(model) else None
        with self._lock:
            self._idle.discard(model)
            if found is not None:
                self._listed[model] = found
                os.makedirs(os.path.join(self.path, model), exist_ok=True)
            elif self._listed.pop(model, None) is not None:
                self._drop(model)

    def _name(self, models: Iterable[str]) -> None:
        names = set(filter(_is_name, models))
        for name in names:
            os.makedirs(os.path.join(self.path, name), exist_ok=True)
        for name in set(os.listdir(self.path)) - names:
            self._drop(name)

    def _drop(self, model: str) -> bool:
        """Not while it is being fetched. False if nothing was dropped."""
        fetching = self._fetching.get(model) or threading.Lock()
        if not fetching.acquire(blocking=False):
            return False
        try:
            shutil.rmtree(os.path.join(self.path, model), ignore_errors=True)
            return bool(self._held.pop(model, None))
        finally:
            fetching.release()

    def stamp(self, model: str) -> str:
        """Of what the last look has found; another one when it was something else."""
        with self._lock:
            listed = self._listed.get(model, {}).values()
            return repr(sorted((one.path, one.nbytes, one.tag or one.modified_s) for one in listed))

    def forget(self, unloaded: Collection[str]) -> None:
        """Told every now and then which models are unloaded. One that was so the last time, too, and that nobody has
        looked at since, is not about to be loaded: its files go, its name stays."""
        with self._lock:
            for model in self._idle.intersection(unloaded) & self._held.keys():
                if self._drop(model):
                    os.makedirs(os.path.join(self.path, model), exist_ok=True)
                    log.info(f"removed the local copy of model '{model}' of {self.url}")
            self._idle = set(unloaded)

    # --- files ------------------------------------------------------------------------------------------------------

    def localise(self, model: str) -> None:
        """Makes the model's directory what was seen at the last look. Raises InternalError; then it is as it was."""
        with self._lock:
            fetching = self._fetching.setdefault(model, threading.Lock())
        with fetching:
            with self._lock:
                listed, held = self._listed.get(model, {}), self._held.get(model, {})
            try:
                self._change(model, plan(held, listed))
            except NotAFile as error:
                raise InternalError(f"{error} (model repository {self.url})") from None
            except OSError as error:
                raise InternalError(
                    f"model '{model}' of {self.url} cannot be copied to this host: {error.strerror or error}"
                ) from None
            with self._lock:
                self._held[model] = listed
                self._idle.discard(model)

    def _change(self, model: str, change: Changes) -> None:
        directory = os.path.join(self.path, model)
        incoming = self._fetch(model, change.fetch) if change.fetch else ""
        try:
            for path in change.remove:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(directory, path))
            _remove_directories(directory, change.directories)
            for path in sorted(change.directories):
                os.makedirs(os.path.join(directory, path), exist_ok=True)
            for number, one in enumerate(change.fetch):
                os.replace(os.path.join(incoming, str(number)), os.path.join(self.path, one.path))
        finally:
            shutil.rmtree(incoming, ignore_errors=True)

    def _fetch(self, model: str, objects: Sequence[Object]) -> str:
        """The directory that holds them, by their numbers. Files have the times of their objects; fractions of a second
        tell apart what the store wrote within one."""
        incoming = tempfile.mkdtemp(dir=self._incoming)
        try:
            paths = [os.path.join(incoming, str(number)) for number in range(len(objects))]
            started = time.monotonic()
            self._objects.fetch(list(zip(objects, paths, strict=True)), _Progress(model, self.url, incoming, objects))
            for one, path in zip(objects, paths, strict=True):
                if os.path.getsize(path) != one.nbytes:
                    raise InternalError(f"the object '{one.path}' of {self.url} has changed while it was fetched")
                at_ns = one.modified_s * 10**9 + zlib.crc32(one.tag.encode()) % 10**9
                os.utime(path, ns=(at_ns, at_ns))
        except BaseException:
            shutil.rmtree(incoming, ignore_errors=True)
            raise
        log.info(
            f"fetched model '{model}' from {self.url}",
            files=len(objects),
            mib=round(sum(one.nbytes for one in objects) / _MIB, 1),
            seconds=round(time.monotonic() - started, 1),
        )
        return incoming


def _remove_directories(directory: str, kept: Collection[str]) -> None:
    """All but those, and what Python leaves in them."""
    for folder, names, _ in os.walk(directory):
        gone = [name for name in names if os.path.relpath(os.path.join(folder, name), directory) not in kept]
        for name in gone:
            names.remove(name)
            if name != "__pycache__":
                shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


class _Progress:
    def __init__(self, model: str, url: str, incoming: str, objects: Sequence[Object]) -> None:
        self._event = f"still fetching model '{model}' from {url}"
        self._incoming = incoming
        self._total = sum(one.nbytes for one in objects)

    def __call__(self) -> None:
        """By what is on disk: a driver may make a file as long as it will be before it has all of it."""
        with os.scandir(self._incoming) as entries:
            done = sum(entry.stat().st_blocks * 512 for entry in entries)
        log.info(self._event, mib=round(done / _MIB), of_mib=round(self._total / _MIB))


def _is_name(model: str) -> bool:
    """A directory can have it; others are no models."""
    return model not in _NO_NAMES and not {"/", "\0"} & set(model) and len(os.fsencode(model)) <= _LONGEST_NAME


def _by_model(objects: Iterable[Object]) -> dict[str, Listing]:
    """Objects at the top, which belong to no model, are left out."""
    models: dict[str, Listing] = {}
    for one in objects:
        model, slash, path = one.path.partition("/")
        if slash:
            listing = models.setdefault(model, {})
            if path:
                listing[path] = one
    return models
