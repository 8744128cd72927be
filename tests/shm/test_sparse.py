import os
import resource

import pytest

from shm.errors import ShmFull
from shm.segment import HEADER_NBYTES
from shm.sparse import SparseSegment
from shm.store import Reader
from shm.sweep import sweep


@pytest.fixture
def segment(tmp_path):
    segment = SparseSegment(str(tmp_path), 1 << 30)
    yield segment
    segment.close()


def blocks(tmp_path, segment):
    return os.stat(tmp_path / segment.name).st_blocks


def test_only_what_was_written_takes_memory(tmp_path, segment):
    before = blocks(tmp_path, segment)
    assert before * 512 < 1 << 20
    segment.write(1 << 29, [(0, bytes(1 << 20))])
    assert (1 << 20) <= (blocks(tmp_path, segment) - before) * 512 < 2 << 20


def test_what_was_written_is_read_by_handle(tmp_path, segment):
    segment.write(4096, [(0, b"one"), (64, memoryview(b"two")), (128, b"")])
    reader = Reader(str(tmp_path))
    assert bytes(reader.view(segment.name, HEADER_NBYTES + 4096, 3)) == b"one"
    assert bytes(reader.view(segment.name, HEADER_NBYTES + 4096 + 64, 3)) == b"two"
    segment.write(4096, [(0, b"new")])
    assert bytes(reader.view(segment.name, HEADER_NBYTES + 4096, 3)) == b"new"
    reader.close()


def test_what_cannot_be_written_is_an_error(segment):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(ShmFull, match="no shared memory: File too large"):
            segment.write(4096, [(0, b"x")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_is_written_in_part_is_written_on(tmp_path, segment, monkeypatch):
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:2], at))
    segment.write(0, [(0, b"abcde")])
    reader = Reader(str(tmp_path))
    assert bytes(reader.view(segment.name, HEADER_NBYTES, 5)) == b"abcde"
    reader.close()


def test_it_has_an_owner_and_is_gone_when_closed(tmp_path):
    segment = SparseSegment(str(tmp_path), 4096)
    sweep(str(tmp_path))
    assert os.listdir(tmp_path) == [segment.name]
    segment.close()
    assert os.listdir(tmp_path) == []


def test_a_directory_that_is_none_is_an_error(tmp_path):
    with pytest.raises(ShmFull):
        SparseSegment(str(tmp_path / "none"), 4096)
