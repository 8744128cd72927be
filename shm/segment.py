"""One named, memory-mapped file: a header that says whose it is, then data.

Relies on the creator being the only one who unlinks or resizes it. Pages are reserved before first use, because a page
that cannot be had later is a SIGBUS and not an error (but see sparse.py). The owner's mapping holds a flock of the
file, by which those in other pid namespaces, who cannot look for its pid, know that it lives (docs/decisions/0010).

    0        8        16       24       32                48       56       64       72         128
    +--------+--------+--------+--------+-----------------+--------+--------+--------+----------+--------- - -
    | magic  | layout | owner  | owner's|     boot id     | owner's| locked | status |  unused  | data
    |        | version| pid    | start  |                 | pid ns | (0, 1) | word   |          |
    +--------+--------+--------+--------+-----------------+--------+--------+--------+----------+--------- - -

All numbers are unsigned 64-bit little-endian. ``start`` is field 22 of /proc/<pid>/stat, ``pid ns`` the inode of
/proc/<pid>/ns/pid; both, and the boot id, are zero on a system that does not tell. ``locked`` is 0 where there are no
locks. The status word has a cache line of its own: it is the id of the batch that the owner is executing, 0 for none.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import re
import secrets
import stat
import struct
import tempfile
from typing import NamedTuple, Optional

from .errors import BadSegment, ShmFull

MAGIC = b"tnsrbus\n"
LAYOUT_VERSION = 1
HEADER_NBYTES = 128
LOCKED_OFFSET = 56
STATUS_OFFSET = 64
NAME = re.compile(r"tensorbus-([0-9]{1,20})-[0-9a-f]{32}", re.ASCII)

_HEADER = struct.Struct("<8sQQQ16sQ")
_NAME_DIGITS = 32
_ZEROS = bytes(1 << 20)


class Owner(NamedTuple):
    """A process, told apart from any other that ever had or will have its pid on this host."""

    pid: int
    start: int
    boot_id: bytes
    pid_namespace: int


def default_directory() -> str:
    """/dev/shm; on a system without it a folder that only this user can enter. Raises OSError."""
    if os.path.isdir("/dev/shm") and os.access("/dev/shm", os.W_OK | os.X_OK):
        return "/dev/shm"
    path = os.path.join(tempfile.gettempdir(), "tensorbus-{}".format(os.getuid()))
    os.makedirs(path, mode=0o700, exist_ok=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError("the folder for shared memory is open to other users")
    return path


def read_stat(pid: int) -> tuple[str, int]:
    """State letter and start time of a process. Raises OSError if there is none (or no /proc)."""
    with open("/proc/{}/stat".format(pid), "rb") as file:
        # The command's name, field 2, is in parentheses and may itself hold spaces and parentheses.
        fields = file.read().rpartition(b")")[2].split()
    return fields[0].decode(), int(fields[19])


def this_owner() -> Owner:
    """The calling process. Not cached, since a fork would inherit it."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot_id = bytes.fromhex(file.read().strip().replace("-", ""))
        return Owner(os.getpid(), read_stat(os.getpid())[1], boot_id, os.stat("/proc/self/ns/pid").st_ino)
    except OSError as fault:
        if fault.errno is None:  # TimeoutError, say, of a signal handler of the model
            raise
        return Owner(os.getpid(), 0, bytes(16), 0)


def parse_header(header: bytes | memoryview) -> Owner:
    """The owner that a segment's first bytes name. Raises BadSegment."""
    if len(header) < HEADER_NBYTES:
        raise BadSegment("a segment is shorter than its header")
    magic, version, *owner = _HEADER.unpack_from(header)
    if magic != MAGIC:
        raise BadSegment("a file is no segment")
    if version != LAYOUT_VERSION:
        raise BadSegment("a segment has layout version {}, not {}".format(version, LAYOUT_VERSION))
    return Owner(*owner)


def segment_size(nbytes: int) -> int:
    """Of the file of a segment with room for ``nbytes`` of data: whole pages."""
    return -(-(HEADER_NBYTES + nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE


class Segment:
    """A mapping of one segment. ``buf`` spans the whole file, header included; offsets in handles count from its start.

    ``status_word[0]`` is the status, for an owner that sets it all the time.

    After ``close`` the memory stays mapped for as long as views of it are alive, so that none of them dangles.
    """

    __slots__ = ("_directory", "_map", "buf", "name", "size", "status_word")

    def __init__(self, directory: str, name: str, mapping: mmap.mmap) -> None:
        self._directory = directory
        self._map = mapping
        self.name = name
        self.size = len(mapping)
        self.buf = memoryview(mapping)
        self.status_word = self.buf[STATUS_OFFSET : STATUS_OFFSET + 8].cast("Q")

    @classmethod
    def create(cls, directory: str, nbytes: int, reserve: bool = True, tag: str = "") -> Segment:
        """A new segment of this process with room for ``nbytes`` of data at least. Without ``reserve`` only its header
        may be touched (sparse.py). ``tag``, of hexadecimal digits, stands in the name in place of some of its random
        ones. Raises ShmFull."""
        random = secrets.token_hex(_NAME_DIGITS // 2)
        name = "tensorbus-{}-{}{}".format(os.getpid(), tag, random[len(tag) :])
        if not NAME.fullmatch(name):
            raise ValueError("the tag of a segment is not of hexadecimal digits")
        path = os.path.join(directory, name)
        header = _HEADER.pack(MAGIC, LAYOUT_VERSION, *this_owner())
        try:
            mapping = _create_file(path, header, segment_size(nbytes), reserve)
        except (OSError, OverflowError) as error:
            raise ShmFull("no shared memory: {}".format(getattr(error, "strerror", None) or "too large")) from None
        return cls(directory, name, mapping)

    @classmethod
    def attach(cls, directory: str, name: str) -> Segment:
        """Another process's segment. Raises BadSegment."""
        if not NAME.fullmatch(name):
            raise BadSegment("a segment's name is malformed")
        try:
            mapping = _map_file(os.path.join(directory, name))
        except OSError as error:
            raise BadSegment("a segment cannot be opened: {}".format(error.strerror)) from None
        parse_header(mapping[:HEADER_NBYTES])
        return cls(directory, name, mapping)

    @property
    def status(self) -> int:
        return self.status_word[0]

    @status.setter
    def status(self, value: int) -> None:
        self.status_word[0] = value

    def close(self) -> None:
        """Drop this mapping; the last view of it, if any is left, unmaps it. May be called twice."""
        try:
            self.status_word.release()
            self.buf.release()
            self._map.close()
        except BufferError:
            # Someone still has a view. It keeps the mapping alive by its own references.
            pass

    def unlink(self) -> None:
        """Remove the name. Mappings live on. May be called twice."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self._directory, self.name))


def map_private(directory: str, name: str, offset: int, nbytes: int) -> memoryview:
    """A range of a segment, copy-on-write: what is written to it nobody else sees. Raises OSError."""
    fd = os.open(os.path.join(directory, name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        start = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        mapping = mmap.mmap(fd, offset - start + nbytes, access=mmap.ACCESS_COPY, offset=start)
    finally:
        os.close(fd)
    return memoryview(mapping)[offset - start :]


def _create_file(path: str, header: bytes, size: int, reserve: bool) -> mmap.mmap:
    """Locked by the mapping that is returned, and from before it has its name."""
    fd = _create_unnamed(path, header, size, reserve)
    if fd is None:
        fd = _create_named(path, header, size, reserve)
    try:
        return _map_file(path, locked=True)
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(fd)


def _create_unnamed(path: str, header: bytes, size: int, reserve: bool) -> Optional[int]:
    """The file has no name until it is complete: whoever is killed on the way leaves nothing of which nobody knows the
    owner. None where the file system cannot do that, or there is no /proc to name it by; else its descriptor.
    """
    try:
        fd = os.open(os.path.dirname(path), os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except (AttributeError, OSError):
        return None
    try:
        _fill(fd, header, size, reserve)
        with contextlib.suppress(OSError):
            # Given a folder (of which an absolute path has no need) Python calls linkat, which follows /proc's link.
            os.link("/proc/self/fd/{}".format(fd), path, src_dir_fd=fd)
            return fd
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def _create_named(path: str, header: bytes, size: int, reserve: bool) -> int:
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        _fill(fd, header, size, reserve)
    except BaseException:
        os.unlink(path)
        os.close(fd)
        raise
    return fd


def _fill(fd: int, header: bytes, size: int, reserve: bool) -> None:
    if reserve:
        _reserve(fd, size)
    else:
        os.ftruncate(fd, size)
    os.pwrite(fd, header + int(_lock(fd)).to_bytes(8, "little"), 0)


def _lock(fd: int) -> bool:
    """Until nobody has the file open or mapped who has it by this descriptor or a copy of that. Shared: the mapping's
    own lock comes while that of the descriptor that made the file is still held."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def is_abandoned(fd: int, header: bytes | memoryview) -> bool:
    """Whether the owner has locked this segment and does not hold the lock any more: it is dead, wherever it was."""
    if not header[LOCKED_OFFSET]:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _reserve(fd: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
        return
    for start in range(0, size, len(_ZEROS)):  # macOS: only written pages are certain
        os.write(fd, _ZEROS[: size - start])


def _map_file(path: str, locked: bool = False) -> mmap.mmap:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size < HEADER_NBYTES:
            raise BadSegment("a file is no segment")
        if locked:
            _lock(fd)
        return mmap.mmap(fd, found.st_size)
    finally:
        os.close(fd)
