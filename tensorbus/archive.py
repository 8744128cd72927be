"""Unpacks the archive of a Python environment, of which nothing gets to write, or to lead, out of its directory.

What an archive may hold is decided by names alone, before anything of it is on disk:

- A name is relative and without ``..``, and no directory on its way is a link.
- A symbolic link goes up (``../``) at most to the root, and then only down. So wherever links lead through links, the
  end is inside.
- A hard link is to a file that was unpacked before. There are no devices, pipes or sockets.
"""

from __future__ import annotations

import os
import tarfile
import threading
from collections.abc import Callable
from posixpath import dirname, isabs, normpath

_READ_SIZE = 1 << 20


class ArchiveError(Exception):
    """The archive cannot be used; the text says why and names the member at fault."""


class Stopped(Exception):
    """``stop`` was set."""


class Entries:
    """What an archive has shown so far. Invariant: no name is both a file and a link."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._links: set[str] = set()

    def admit(self, member: tarfile.TarInfo) -> None:
        """Raises ArchiveError for one that must not be unpacked; the others get harmless owners and modes."""
        name = _checked(member.name, member.name)
        if name in self._links or any(parent in self._links for parent in _parents(name)):
            raise ArchiveError(f"Path leads through a link: '{member.name}'")
        if member.issym():
            _check_target(name, member)
            self._files.discard(name)
            self._links.add(name)
        elif member.islnk():
            if _checked(member.linkname, member.name) not in self._files:
                raise ArchiveError(f"Link to what is no file of the archive: '{member.name}'")
            self._files.add(name)
        elif member.isreg():
            self._files.add(name)
        elif not member.isdir():
            raise ArchiveError(f"Neither file, directory nor link: '{member.name}'")
        _make_harmless(member)


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


def _make_harmless(member: tarfile.TarInfo) -> None:
    """Ours, readable and removable by us, without special bits, and writable by nobody else."""
    member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
    member.mode = member.mode & 0o755 | (0o700 if member.isdir() else 0o600)


def extract(archive: str, destination: str, progress: Callable[[int], None], stop: threading.Event) -> None:
    """Into a new directory, which is private. ``progress`` is told the number of members so far.

    Takes long: not for an event loop. Raises ArchiveError, OSError, or Stopped; something may then be left.
    """
    os.mkdir(destination, 0o700)
    entries = Entries()
    try:
        # A stream: to seek in a compressed file is to read all of it again.
        with tarfile.open(archive, "r|*", bufsize=_READ_SIZE) as tar:
            tar.extraction_filter = lambda member, path: member  # what Entries admits is fit to be unpacked
            for count, member in enumerate(tar, 1):
                if stop.is_set():
                    raise Stopped
                entries.admit(member)
                tar.extract(member, destination)
                progress(count)
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise ArchiveError(str(error)) from error
