import errno
import mmap
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from shm.errors import BadSegment, ShmFull
from shm.segment import HEADER_NBYTES, Owner, Segment, default_directory, parse_header, this_owner


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path)


@pytest.fixture
def tiny_tmpfs(tmp_path):
    """A file system of 64 KiB."""
    if os.name != "posix" or os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("only root can mount a file system that is small enough to fill")
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this container may not mount")
    yield str(tmp_path)
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_a_segment_has_room_for_what_was_asked_beside_its_header(directory):
    segment = Segment.create(directory, 5000)
    assert segment.size >= 5000 + HEADER_NBYTES
    assert segment.size % mmap.PAGESIZE == 0
    assert len(segment.buf) == segment.size == os.path.getsize(os.path.join(directory, segment.name))


def test_a_segment_is_readable_by_its_user_alone(directory):
    segment = Segment.create(directory, 1)
    assert os.stat(os.path.join(directory, segment.name)).st_mode & 0o777 == 0o600


def test_names_hold_the_pid_and_128_random_bits(directory):
    first, second = Segment.create(directory, 1), Segment.create(directory, 1)
    assert first.name.startswith(f"tensorbus-{os.getpid()}-")
    assert len(first.name.rpartition("-")[2]) == 32
    assert first.name != second.name


def test_what_one_mapping_writes_the_other_reads(directory):
    ours = Segment.create(directory, 64)
    theirs = Segment.attach(directory, ours.name)
    ours.buf[HEADER_NBYTES : HEADER_NBYTES + 5] = b"hello"
    theirs.buf[HEADER_NBYTES] = ord("j")
    assert bytes(ours.buf[HEADER_NBYTES : HEADER_NBYTES + 5]) == b"jello"


def test_the_status_word_is_seen_by_the_other_side(directory):
    ours = Segment.create(directory, 64)
    theirs = Segment.attach(directory, ours.name)
    assert theirs.status == 0
    ours.status = 2**63 + 5
    assert theirs.status == 2**63 + 5


def test_the_status_word_outlives_its_owner_and_its_name(directory):
    ours = Segment.create(directory, 64)
    theirs = Segment.attach(directory, ours.name)
    ours.status = 7
    ours.unlink()
    ours.close()
    assert theirs.status == 7


def test_the_header_names_the_owner(directory):
    segment = Segment.create(directory, 64)
    assert parse_header(segment.buf) == this_owner()
    assert this_owner().pid == os.getpid()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="start time and boot id are known on Linux")
def test_the_owner_is_known_by_more_than_its_pid():
    owner = this_owner()
    assert owner.start > 0
    assert owner.boot_id != bytes(16)
    assert owner.pid_namespace > 0


@pytest.mark.parametrize("name", ["", "../passwd", "tensorbus-1-xyz", "/etc/passwd", f"tensorbus-1-{'0' * 32}/x"])
def test_malformed_names_are_refused(directory, name):
    with pytest.raises(BadSegment, match="malformed"):
        Segment.attach(directory, name)


def test_a_segment_that_is_not_there_is_refused_without_its_path(directory):
    with pytest.raises(BadSegment) as caught:
        Segment.attach(directory, f"tensorbus-1-{'0' * 32}")
    assert str(caught.value) == "a segment cannot be opened: No such file or directory"
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"", "no segment"),
        (bytes(HEADER_NBYTES - 1), "no segment"),
        (bytes(HEADER_NBYTES), "no segment"),
        (b"tnsrbus\n" + b"\x02" + bytes(200), "layout version 2, not 1"),
    ],
)
def test_files_that_are_laid_out_otherwise_are_refused(tmp_path, content, reason):
    name = f"tensorbus-1-{'0' * 32}"
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadSegment, match=reason):
        Segment.attach(str(tmp_path), name)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/etc/passwd", path)])
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path, make):
    name = f"tensorbus-1-{'0' * 32}"
    make(tmp_path / name)
    with pytest.raises(BadSegment):
        Segment.attach(str(tmp_path), name)


def test_views_stay_valid_after_close_and_unlink(directory):
    segment = Segment.create(directory, 4096)
    array = np.frombuffer(segment.buf[HEADER_NBYTES : HEADER_NBYTES + 4096], dtype=np.uint8)
    whole = np.frombuffer(segment.buf, dtype=np.uint8)
    array[:] = 9
    segment.unlink()
    segment.close()
    del segment
    assert array.sum() == 9 * 4096
    assert whole[HEADER_NBYTES] == 9


def test_the_memory_goes_with_the_last_view(directory):
    segment = Segment.create(directory, 4096)
    name, view = segment.name, segment.buf[HEADER_NBYTES:]
    segment.close()
    del segment
    assert name in _mappings()
    del view
    assert name not in _mappings()


def test_close_and_unlink_may_be_repeated(directory):
    segment = Segment.create(directory, 64)
    for _ in range(2):
        segment.unlink()
        segment.close()
    assert os.listdir(directory) == []


def test_no_file_descriptor_stays_with_a_closed_segment(directory):
    before = len(os.listdir("/dev/fd"))
    for _ in range(5):
        segment = Segment.create(directory, 64)
        Segment.attach(directory, segment.name).close()
        segment.close()
    assert len(os.listdir("/dev/fd")) == before


def test_a_full_file_system_is_an_error_and_leaves_nothing(tiny_tmpfs):
    fits = Segment.create(tiny_tmpfs, 30 << 10)
    with pytest.raises(ShmFull, match=r"^no shared memory: No space left on device$"):
        Segment.create(tiny_tmpfs, 64 << 10)
    assert os.listdir(tiny_tmpfs) == [fits.name]


def test_reserved_pages_can_be_written_when_the_file_system_is_full(tiny_tmpfs):
    segment = Segment.create(tiny_tmpfs, 60 << 10)
    with pytest.raises(ShmFull):
        Segment.create(tiny_tmpfs, 1)
    segment.buf[HEADER_NBYTES:] = b"\xff" * (segment.size - HEADER_NBYTES)
    assert segment.buf[-1] == 0xFF


@pytest.mark.parametrize("nbytes", [1 << 60, 1 << 80])
def test_an_absurd_size_is_an_error_and_leaves_nothing(directory, nbytes):
    with pytest.raises(ShmFull):
        Segment.create(directory, nbytes)
    assert os.listdir(directory) == []


def test_a_folder_that_is_not_there_is_an_error_without_its_path(directory):
    with pytest.raises(ShmFull, match=r"^no shared memory: No such file or directory$"):
        Segment.create(directory + "/absent", 1)


def test_pages_are_reserved_by_writing_where_the_system_cannot_reserve(directory, monkeypatch):
    monkeypatch.delattr(os, "posix_fallocate")
    segment = Segment.create(directory, 3 << 20)
    found = os.stat(os.path.join(directory, segment.name))
    assert found.st_size == segment.size
    assert found.st_blocks * 512 >= segment.size


@pytest.mark.parametrize("missing", ["the flag", "the file system's support", "/proc"])
def test_a_segment_is_made_under_its_name_where_it_cannot_be_made_without(directory, monkeypatch, missing):
    open_file, before = os.open, len(os.listdir("/dev/fd"))

    def refuse(path, flags, *arguments, **more):
        if flags & os.O_DIRECTORY:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return open_file(path, flags, *arguments, **more)

    def no_proc(*arguments, **more):
        raise FileNotFoundError

    if missing == "the flag":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    elif missing == "/proc":
        monkeypatch.setattr(os, "link", no_proc)
    else:
        monkeypatch.setattr(os, "open", refuse)
    segment = Segment.create(directory, 5000)
    assert os.listdir(directory) == [segment.name]
    assert os.stat(os.path.join(directory, segment.name)).st_mode & 0o777 == 0o600
    assert parse_header(segment.buf) == this_owner()
    segment.close()
    assert len(os.listdir("/dev/fd")) == before


def test_a_name_that_is_taken_is_not_taken_over(directory, monkeypatch):
    monkeypatch.setattr("secrets.token_hex", lambda nbytes: "0" * 32)
    segment = Segment.create(directory, 64)
    segment.status = 7
    with pytest.raises(ShmFull, match=r"^no shared memory: File exists$"):
        Segment.create(directory, 64)
    assert Segment.attach(directory, segment.name).status == 7


def test_without_dev_shm_a_private_folder_is_used(tmp_path, monkeypatch):
    _hide_dev_shm(tmp_path, monkeypatch)
    path = default_directory()
    assert path == str(tmp_path / f"tensorbus-{os.getuid()}")
    assert os.stat(path).st_mode & 0o777 == 0o700
    assert default_directory() == path


def test_a_private_folder_that_others_may_enter_is_refused(tmp_path, monkeypatch):
    _hide_dev_shm(tmp_path, monkeypatch)
    os.chmod(default_directory(), 0o755)
    with pytest.raises(PermissionError):
        default_directory()


def test_a_header_with_no_proc_still_holds_the_pid(monkeypatch):
    monkeypatch.setattr("shm.segment.read_stat", _raise_oserror)
    assert this_owner() == Owner(os.getpid(), 0, bytes(16), 0)


def _raise_oserror(pid):
    raise FileNotFoundError(errno.ENOENT, "no such process")


def _hide_dev_shm(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: False)


def _mappings():
    with open("/proc/self/maps") as file:
        return file.read()


def test_a_signal_handler_that_raises_makes_no_owner_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment of an owner that nobody knows would stay for ever."""

    def interrupted(pid: int) -> tuple[str, int]:
        raise TimeoutError

    monkeypatch.setattr("shm.segment.read_stat", interrupted)
    with pytest.raises(TimeoutError):
        this_owner()


def test_a_tag_stands_in_the_name(directory: str) -> None:
    first, second = (Segment.create(directory, 1, tag="0123abcd") for _ in range(2))
    assert first.name.startswith(f"tensorbus-{os.getpid()}-0123abcd")
    assert len(first.name) == len(Segment.create(directory, 1).name) and first.name != second.name


@pytest.mark.parametrize("tag", ["xyz", "../a", "A" * 8, "0" * 33])
def test_a_tag_of_anything_else_is_refused(directory: str, tag: str) -> None:
    with pytest.raises(ValueError):
        Segment.create(directory, 1, tag=tag)
    assert os.listdir(directory) == []
