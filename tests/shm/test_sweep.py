import errno
import os
import shutil
import subprocess
import sys
import time

import pytest

from shm.segment import _HEADER, LOCKED_OFFSET, MAGIC, Segment, this_owner
from shm.sweep import sweep

OWNER = """
import sys
import time
from shm.segment import Segment
segment = Segment.create(sys.argv[1], 64)
print(segment.name, flush=True)
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
    _forge(directory, this_owner()._replace(start=1, **{field: value}), locked=0)
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


def _forge(directory, owner, locked=1):
    segment = Segment.create(directory, 64)
    _HEADER.pack_into(segment.buf, 0, MAGIC, 1, *owner)
    segment.buf[LOCKED_OFFSET] = locked
    segment.close()
    return segment.name


def test_a_segment_whose_maker_died_before_it_wrote_the_header_is_swept_after_a_minute(tmp_path):
    path = tmp_path / f"tensorbus-1-{'0' * 32}"
    path.write_bytes(bytes(4096))
    assert sweep(str(tmp_path)) == []
    os.utime(path, (0, 0))
    assert sweep(str(tmp_path)) == [path.name]


# --- across pid namespaces, as those of containers that share a folder ------------------------------------------------

ELSEWHERE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL")
OWNER_WITH_A_CHILD = """
import os, signal, sys
from shm.segment import Segment
segment = Segment.create(sys.argv[1], 64)
print(segment.name, flush=True)
if not os.fork():
    signal.pause()
sys.stdin.readline()
"""


def _can_go_elsewhere():
    return shutil.which("unshare") and not subprocess.run([*ELSEWHERE, "true"], capture_output=True).returncode


in_namespaces = pytest.mark.skipif(not _can_go_elsewhere(), reason="only root can make a pid namespace")


@pytest.fixture
def elsewhere(directory):
    """Starts an owner in a pid namespace of its own; returns the process outside of it and the segment's name."""
    started = []

    def start(code=OWNER):
        command = [*ELSEWHERE, sys.executable, "-c", code, directory]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def _eventually(done):
    deadline = time.monotonic() + 20
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@in_namespaces
def test_the_segments_of_a_dead_container_are_swept_and_those_of_a_living_one_stay(directory, elsewhere):
    living, dead = elsewhere(), elsewhere()
    assert living[1].split("-")[1] == dead[1].split("-")[1]  # pids in namespaces of their own
    for _ in range(3):  # that one has looked does not matter to the next
        assert sweep(directory) == []
    dead[0].kill()
    dead[0].wait()
    _eventually(lambda: sweep(directory) == [dead[1]])  # the namespace goes a little later than who made it
    assert os.listdir(directory) == [living[1]]


@in_namespaces
def test_who_looks_from_another_container_sweeps_as_well(directory, elsewhere, owner):
    process, name = elsewhere()
    process.kill()
    process.wait()
    look = "import sys; from shm.sweep import sweep; print(*sweep(sys.argv[1]))"
    command = [*ELSEWHERE, sys.executable, "-c", look, directory]
    _eventually(lambda: subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout.strip() == name)
    assert os.listdir(directory) == [owner[1]]


@in_namespaces
def test_many_who_look_at_once_leave_the_living_alone(directory, elsewhere):
    """Each tries the lock, which must never make it look as if the owner had let it go, or been there."""
    living = elsewhere()[1]
    dead, name = elsewhere()
    look = "import sys; from shm.sweep import sweep\nfor _ in range(300): print(*sweep(sys.argv[1]), end=' ')"
    command = [sys.executable, "-c", look, directory]
    lookers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    dead.kill()
    swept = "".join(looker.communicate()[0] for looker in lookers).split()
    dead.wait()
    _eventually(lambda: sweep(directory) == [] and os.listdir(directory) == [living])
    assert set(swept) <= {name}


@in_namespaces
def test_a_new_segment_is_never_taken_for_one_that_was_left(directory):
    """It is locked before it has a name, whoever looks meanwhile."""
    make = """
import sys
import time
from shm.segment import Segment
for _ in range(2000):
    segment = Segment.create(sys.argv[1], 64)
    Segment.attach(sys.argv[1], segment.name).close()
    segment.unlink()
    segment.close()
"""
    with subprocess.Popen([*ELSEWHERE, sys.executable, "-c", make, directory]) as process:
        while process.poll() is None:
            assert sweep(directory) == []
    assert process.returncode == 0


@in_namespaces
def test_what_a_dead_process_has_forked_keeps_its_segments_from_being_swept_elsewhere(directory, elsewhere):
    """It may have the memory mapped. In the owner's namespace its death is known all the same."""
    command = ["sh", "-c", 'exec 3<&0; "$@" <&3 & wait $!; echo gone; sleep 60', "sh"]
    code = [sys.executable, "-c", OWNER_WITH_A_CHILD, directory]
    with subprocess.Popen(
        [*ELSEWHERE, *command, *code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        name = process.stdout.readline().strip()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "gone\n"
        assert sweep(directory) == []
        process.kill()
    _eventually(lambda: sweep(directory) == [name])


def test_the_lock_needs_no_descriptor_of_its_own(directory):
    """It is that of the mapping, which has one as it is."""
    before = len(os.listdir("/dev/fd"))
    segments = [Segment.create(directory, 64) for _ in range(10)]
    assert len(os.listdir("/dev/fd")) <= before + len(segments)
    for segment in segments:
        segment.close()


def test_a_file_system_without_locks_is_said_to_have_none(directory, monkeypatch):
    def refuse(fd, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    segment = Segment.create(directory, 64)
    assert segment.buf[LOCKED_OFFSET] == 0
    monkeypatch.undo()
    assert Segment.create(directory, 64).buf[LOCKED_OFFSET] == 1
