"""Unpacks the archive of a Python environment, of which nothing gets to write, or to lead, out of its directory.

What an archive may hold is decided by names alone, before anything of it is on disk:

- A name is relative and without ``..``, no directory on its way is a link, and it stays what it was at first.
- A symbolic link goes up (``../``) at most to the root, and then only down. So wherever links lead through links, the
  end is inside.
- A hard link is to a file that was unpacked before. There are no devices, pipes or sockets.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import tarfile
import threading
import zlib
from collections.abc import Callable
from enum import Enum
from posixpath import dirname, isabs, normpath
from typing import BinaryIO, cast

_READ_SIZE = 1 << 20
_COMPRESSIONS: dict[bytes, Callable[[str], object]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
}
_LONGEST_MAGIC = max(map(len, _COMPRESSIONS))


class ArchiveError(Exception):
    """The archive cannot be used; the text says why and names the member at fault."""


class Stopped(Exception):
    """``stop`` was set."""


class _Kind(Enum):
    DIRECTORY = "directory"
    FILE = "file"
    LINK = "link"


class Entries:
    """What an archive has shown so far, by normal name; every parent of one of these is a directory in here."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {".": _Kind.DIRECTORY}

    def admit(self, member: tarfile.TarInfo) -> None:
        """Raises ArchiveError for one that must not be unpacked; the others get a normal name and harmless owners."""
        name = _checked(member.name, member.name)
        kind = _kind(member)
        for parent in _parents(name):
            if self._kinds.setdefault(parent, _Kind.DIRECTORY) is not _Kind.DIRECTORY:
                raise ArchiveError(f"Path leads through a {self._kinds[parent].value}: '{member.name}'")
        before = self._kinds.setdefault(name, kind)
        if before is not kind:
            raise ArchiveError(f"Path is a {before.value} already: '{member.name}'")
        if member.issym():
            _check_target(name, member)
        elif member.islnk():
            self._check_linked_file(name, member)
        _make_harmless(name, member)

    def _check_linked_file(self, name: str, member: tarfile.TarInfo) -> None:
        target = _checked(member.linkname, member.name)
        if target == name or self._kinds.get(target) is not _Kind.FILE:
            raise ArchiveError(f"Link to what is no other file of the archive: '{member.name}'")
        member.linkname = target


def _kind(member: tarfile.TarInfo) -> _Kind:
    if member.issym():
        return _Kind.LINK
    if member.isreg() or member.islnk():
        return _Kind.FILE
    if member.isdir():
        return _Kind.DIRECTORY
    raise ArchiveError(f"Neither file, directory nor link: '{member.name}'")


def _checked(path: str, name: str) -> str:
    """The normal form of a path within the archive. The two sentences are libarchive's, which Triton shows."""
    if isabs(path):
        raise ArchiveError(f"Path is absolute: '{name}'")
    if ".." in path.split("/"):
        raise ArchiveError(f"Path contains '..': '{name}'")
    return normpath(path)


def _parents(name: str) -> list[str]:
    parts = name.split("/")
    return ["/".join(parts[:length]) for length in range(1, len(parts))]


def _check_target(name: str, member: tarfile.TarInfo) -> None:
    target = member.linkname
    if isabs(target):
        raise ArchiveError(f"Link is absolute: '{member.name}' -> '{target}'")
    parts = [part for part in target.split("/") if part not in ("", ".")]
    up = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
    depth = len([part for part in dirname(name).split("/") if part])
    if up > depth or ".." in parts[up:]:
        raise ArchiveError(f"Link leaves the archive: '{member.name}' -> '{target}'")


def _make_harmless(name: str, member: tarfile.TarInfo) -> None:
    """Under the name that was checked; ours to read and remove, writable by nobody else, without special bits."""
    member.name = name
    member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
    member.mode = member.mode & 0o755 | (0o700 if member.isdir() else 0o600)


def extract(archive: str, destination: str, progress: Callable[[int], None], stop: threading.Event) -> None:
    """Into a new directory, which is private. ``progress`` is told the number of members so far.

    Takes long: not for an event loop. Raises ArchiveError, OSError, or Stopped; something may then be left.
    """
    os.mkdir(destination, 0o700)
    try:
        with _opened(archive) as file:
            _extract(file, destination, progress, stop)
            while file.read(_READ_SIZE):  # the checksum stands at the end
                pass
    except (tarfile.TarError, EOFError, ValueError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise ArchiveError(str(error)) from error


def _opened(archive: str) -> BinaryIO:
    """The tar file within. Not by tarfile, which takes a compressed file that ends too early for a whole one."""
    with open(archive, "rb") as file:
        beginning = file.read(_LONGEST_MAGIC)
    for magic, opener in _COMPRESSIONS.items():
        if beginning.startswith(magic):
            return cast(BinaryIO, opener(archive))
    return open(archive, "rb")


def _extract(file: BinaryIO, destination: str, progress: Callable[[int], None], stop: threading.Event) -> None:
    entries = Entries()
    # As a stream: to go back in a compressed file is to read all of it again.
    with tarfile.open(fileobj=file, mode="r|", bufsize=_READ_SIZE) as tar:
        tar.extraction_filter = lambda member, path: member  # what Entries admits is fit to be unpacked
        for count, member in enumerate(tar, 1):
            if stop.is_set():
                raise Stopped
            entries.admit(member)
            tar.extract(member, destination)
            progress(count)
