import os
import subprocess
import sys

import pytest

from shm.segment import _HEADER, MAGIC, Segment, this_owner
from shm.sweep import sweep

OWNER = """
import sys
from shm.segment import Segment
print(Segment.create(sys.argv[1], 64).name, flush=True)
sys.stdin.read()
"""

KILLED_WHILE_MAKING = """
import os, signal, sys
from shm.segment import Segment

def trace(frame, event, argument):
    global left
    left -= frame.f_code.co_filename.endswith("segment.py")
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return trace

status, steps = -1, 0
while status:
    steps += 1
    pid = os.fork()
    if not pid:
        left = steps
        sys.settrace(trace)
        Segment.create(sys.argv[1], 64)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
print(steps)
"""


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path)


@pytest.fixture
def owner(directory):
    """Another process with one segment, and the segment's name."""
    command = [sys.executable, "-c", OWNER, directory]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process, process.stdout.readline().strip()
        process.kill()


def test_the_segments_of_a_killed_process_are_swept(directory, owner):
    process, name = owner
    process.kill()
    process.wait()
    assert sweep(directory) == [name]
    assert os.listdir(directory) == []


def test_a_process_that_its_parent_has_not_reaped_is_dead_too(directory, owner):
    process, name = owner
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert sweep(directory) == [name]


def test_the_segments_of_living_processes_stay(directory, owner):
    ours = Segment.create(directory, 64)
    assert sweep(directory) == []
    assert sorted(os.listdir(directory)) == sorted([ours.name, owner[1]])


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="on Linux alone is a file made before it has a name")
def test_a_process_leaves_nothing_whenever_it_is_killed(directory):
    """At every line of the making of a segment; a file without a header would stay for a minute."""
    command = [sys.executable, "-c", KILLED_WHILE_MAKING, directory]
    steps = int(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    assert steps > 20
    sweep(directory)
    assert os.listdir(directory) == []


def test_only_the_segments_of_the_given_process_are_swept(directory, owner):
    process, name = owner
    process.kill()
    process.wait()
    assert sweep(directory, pid=process.pid + 1) == []
    assert sweep(directory, pid=process.pid) == [name]


def test_a_pid_in_use_again_does_not_protect_its_former_owner_s_segments(directory):
    name = _forge(directory, this_owner()._replace(start=this_owner().start - 1))
    assert sweep(directory) == [name]


@pytest.mark.parametrize("field, value", [("boot_id", b"\x01" * 16), ("pid_namespace", 1)])
def test_an_owner_of_whom_we_cannot_know_keeps_its_segments(directory, field, value):
    _forge(directory, this_owner()._replace(start=1, **{field: value}))
    assert sweep(directory) == []


@pytest.mark.parametrize("content", [b"", bytes(4096), b"tnsrbus\n" + b"\x09" * 200])
def test_files_that_only_bear_a_segment_s_name_stay(tmp_path, content):
    (tmp_path / f"tensorbus-1-{'0' * 32}").write_bytes(content)
    assert sweep(str(tmp_path)) == []
    assert len(os.listdir(tmp_path)) == 1


def test_files_of_others_stay_whatever_they_hold(tmp_path):
    name = _forge(str(tmp_path), this_owner()._replace(start=1))
    os.rename(tmp_path / name, tmp_path / "psm_1234")
    os.mkdir(tmp_path / f"tensorbus-1-{'1' * 32}")
    os.symlink("/etc/passwd", tmp_path / f"tensorbus-1-{'2' * 32}")
    assert sweep(str(tmp_path)) == []
    assert len(os.listdir(tmp_path)) == 3


def test_a_folder_that_is_not_there_holds_nothing(directory):
    assert sweep(directory + "/absent") == []


def _forge(directory, owner):
    segment = Segment.create(directory, 64)
    _HEADER.pack_into(segment.buf, 0, MAGIC, 1, *owner)
    segment.close()
    return segment.name


def test_a_segment_whose_maker_died_before_it_wrote_the_header_is_swept_after_a_minute(tmp_path):
    path = tmp_path / f"tensorbus-1-{'0' * 32}"
    path.write_bytes(bytes(4096))
    assert sweep(str(tmp_path)) == []
    os.utime(path, (0, 0))
    assert sweep(str(tmp_path)) == [path.name]
