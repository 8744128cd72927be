"""What may be unpacked and what is refused; whatever an archive holds, nothing outside of its directory is touched."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorbus.archive import ArchiveError, Entries, Stopped, extract

DIRECTORY, FILE, SYMLINK, HARD_LINK = tarfile.DIRTYPE, tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


def member(name: str, kind: bytes = FILE, target: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, target, mode
    return info


def write(path: Path, *members: tarfile.TarInfo, mode: str = "w:gz") -> Path:
    """Files hold their own name."""
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for info in members:
            data = os.fsencode(info.name) if info.isreg() else b""
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def unpack(path: Path, destination: Path, progress: Callable[[int], None] = lambda count: None) -> Path:
    extract(str(path), str(destination), progress, threading.Event())
    return destination


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_an_environment_is_unpacked_with_its_links(tmp_path: Path, mode: str) -> None:
    env = write(
        tmp_path / "env",
        member(".", DIRECTORY),
        member("./bin", DIRECTORY),
        member("./bin/python3.9", mode=0o755),
        member("bin/python", SYMLINK, "python3.9"),
        member("bin/again", HARD_LINK, "./bin/python3.9", mode=0o755),
        member("share/a/b/python", SYMLINK, "../../../bin/./python"),
        mode=mode,
    )
    told: list[int] = []
    out = unpack(env, tmp_path / "out", told.append)
    assert (out / "bin" / "python").read_text() == "./bin/python3.9"
    assert (out / "share" / "a" / "b" / "python").resolve() == (out / "bin" / "python3.9").resolve()
    assert (out / "bin" / "again").samefile(out / "bin" / "python3.9")
    assert os.access(out / "bin" / "python3.9", os.X_OK)
    assert told == [1, 2, 3, 4, 5, 6]


REFUSED = {
    "Path is absolute": [member("/etc/evil")],
    "Path contains '..'": [member("../evil")],
    "Path contains '..': 'a/../../evil'": [member("a/../../evil")],
    "Path contains '..': 'a/../b'": [member("a/../b")],
    "Link is absolute": [member("evil", SYMLINK, "/etc")],
    "Link leaves the archive": [member("evil", SYMLINK, "..")],
    "Link leaves the archive: 'a/evil'": [member("a/evil", SYMLINK, "../../x")],
    "Link leaves the archive: 'evil'": [
        member("a/b/up", SYMLINK, "../.."),
        member("evil", SYMLINK, "a/b/up/.."),
    ],
    "Path leads through a link: 'up/evil'": [member("up", SYMLINK, "a"), member("up/evil")],
    "Path is a link already: './up'": [member("up", SYMLINK, "a"), member("./up")],
    "Path is absolute: 'evil'": [member("evil", HARD_LINK, "/etc/passwd")],
    "Path contains '..': 'evil'": [member("evil", HARD_LINK, "../../etc/passwd")],
    "Link to what is no other file of the archive: 'evil'": [
        member("a/b/link", SYMLINK, "../../x"),
        member("evil", HARD_LINK, "a/b/link"),
    ],
    "Path is a file already: 'a'": [member("a"), member("a", SYMLINK, "x")],
    "Path is a directory already: 'a'": [member("a/b"), member("a", SYMLINK, "x")],
    "Path leads through a file: 'a/b'": [member("a"), member("a/b")],
    "Link to what is no other file of the archive: 'itself'": [member("itself"), member("itself", HARD_LINK, "itself")],
    "Path is a directory already: '.'": [member(".", SYMLINK, "a")],
    "Neither file, directory nor link: 'evil'": [member("evil", tarfile.CHRTYPE)],
    "Neither file, directory nor link: 'pipe'": [member("pipe", tarfile.FIFOTYPE)],
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_leads_outside_is_refused(tmp_path: Path, reason: str) -> None:
    env = write(tmp_path / "env.tar.gz", member("first"), *REFUSED[reason])
    (tmp_path / "sandbox").mkdir()
    with pytest.raises(ArchiveError) as refused:
        unpack(env, tmp_path / "sandbox" / "out")
    assert str(refused.value).startswith(reason)
    assert {path.name for path in tmp_path.iterdir()} == {"env.tar.gz", "sandbox"}
    assert [path.name for path in (tmp_path / "sandbox").iterdir()] == ["out"]


def test_nothing_is_owned_by_others_or_runs_with_their_rights() -> None:
    info = member("bin/su", mode=0o6777)
    info.uid, info.gid, info.uname = 0, 0, "root"
    Entries().admit(info)
    assert (info.mode, info.uid, info.gid, info.uname) == (0o755, os.getuid(), os.getgid(), "")


def test_directories_that_cannot_be_entered_can_still_be_removed(tmp_path: Path) -> None:
    env = write(tmp_path / "env.tar", member("closed", DIRECTORY, mode=0), member("closed/file", mode=0), mode="w")
    out = unpack(env, tmp_path / "out")
    assert (out / "closed").stat().st_mode & 0o700 == 0o700
    assert (out / "closed" / "file").read_text() == "closed/file"


@pytest.mark.parametrize("content", [b"", b"this is no archive", b"\x1f\x8b\x08" + bytes(100)])
def test_what_is_no_archive_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "env.tar.gz").write_bytes(content)
    with pytest.raises(ArchiveError):
        unpack(tmp_path / "env.tar.gz", tmp_path / "out")


@pytest.mark.parametrize("kept", [0.3, 0.9])
@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_an_archive_that_ends_too_early_is_told(tmp_path: Path, mode: str, kept: float) -> None:
    env = write(tmp_path / "env", *[member(os.urandom(40).hex()) for _ in range(50)], mode=mode)
    data = env.read_bytes().rstrip(b"\0")
    env.write_bytes(data[: int(len(data) * kept)])
    with pytest.raises(ArchiveError):
        unpack(env, tmp_path / "out")


def test_it_can_be_stopped(tmp_path: Path) -> None:
    env = write(tmp_path / "env.tar", *[member(f"{number}") for number in range(10)], mode="w")
    stop = threading.Event()
    with pytest.raises(Stopped):
        extract(str(env), str(tmp_path / "out"), lambda count: stop.set(), stop)
    assert len(list((tmp_path / "out").iterdir())) == 1


NAMES = st.lists(st.sampled_from(["a", "b", "c", ".", "..", ""]), min_size=1, max_size=4).map("/".join)
MEMBERS = st.builds(member, NAMES, st.sampled_from([DIRECTORY, FILE, FILE, SYMLINK, SYMLINK, HARD_LINK]), NAMES)


@given(members=st.lists(MEMBERS, max_size=8))
@settings(deadline=None, max_examples=300)
def test_no_archive_reaches_outside(tmp_path_factory: pytest.TempPathFactory, members: list[tarfile.TarInfo]) -> None:
    """What is admitted is unpacked, or the archive refused (for a hard link to a broken link, say); either way every
    link leads within afterwards, and what lay outside is as it was."""
    sandbox = tmp_path_factory.mktemp("sandbox", numbered=True)
    for name in "abc":
        (sandbox / name).write_text("outside")
    entries, admitted = Entries(), []
    for one in members:
        try:
            entries.admit(one)
            admitted.append(one)
        except ArchiveError:
            continue
    env = write(sandbox / "env.tar", *admitted, mode="w")
    with contextlib.suppress(ArchiveError):
        unpack(env, sandbox / "out")
    out = os.path.realpath(sandbox / "out")
    for folder, directories, files in os.walk(out):
        for name in directories + files:
            with contextlib.suppress(OSError):  # it leads nowhere, or to itself
                real = os.path.realpath(os.path.join(folder, name), strict=True)
                assert os.path.commonpath([out, real]) == out, os.path.join(folder, name)
    assert {path.name for path in sandbox.iterdir()} == {"a", "b", "c", "env.tar", "out"}
    assert all((sandbox / name).read_text() == "outside" for name in "abc")
