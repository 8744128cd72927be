"""What is built once stays, for everybody; what was not finished does not count."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tensorbus.build_cache import BuildCache


class Builder:
    """Makes a directory with one file."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.built: list[str] = []
        self.fault = fault
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def __call__(self, path: str, lock: int) -> None:
        self.built.append(path)
        os.mkdir(path)
        Path(path, "file").touch()
        await self.may_end.wait()
        if self.fault is not None:
            raise self.fault


def test_a_directory_is_built_once(tmp_path: Path) -> None:
    async def main() -> None:
        build = Builder()
        for cache in (BuildCache(str(tmp_path / "cache")), BuildCache(str(tmp_path / "cache"))):
            path = await cache.get("packages/one", build)
        assert build.built == [path]
        assert path == str(tmp_path / "cache" / "packages" / "one") and Path(path, "file").exists()

    asyncio.run(main())


def test_the_cache_is_for_its_owner_alone(tmp_path: Path) -> None:
    asyncio.run(BuildCache(str(tmp_path / "cache")).get("one", Builder()))
    assert (tmp_path / "cache").stat().st_mode & 0o077 == 0


def test_who_comes_meanwhile_waits_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        one, two = Builder(), Builder()
        one.may_end.clear()
        first = asyncio.create_task(BuildCache(str(tmp_path)).get("one", one))
        while not one.built:
            await asyncio.sleep(0)
        second = asyncio.create_task(BuildCache(str(tmp_path)).get("one", two))
        done, _ = await asyncio.wait([second], timeout=0.3)
        assert not done
        one.may_end.set()
        assert await second == await first
        assert not two.built

    asyncio.run(main())


def test_a_build_that_failed_leaves_nothing_and_is_tried_again(tmp_path: Path) -> None:
    async def main() -> None:
        cache = BuildCache(str(tmp_path))
        with pytest.raises(ValueError):
            await cache.get("one", Builder(ValueError("no network")))
        assert not (tmp_path / "one").exists()
        assert await cache.get("one", Builder())

    asyncio.run(main())


def test_one_that_was_given_up_half_way_is_built_anew(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "half").touch()
    path = asyncio.run(BuildCache(str(tmp_path)).get("one", Builder()))
    assert sorted(os.listdir(path)) == [".tensorbus-complete", "file"]


def test_an_environment_whose_python_was_removed_is_built_anew(tmp_path: Path) -> None:
    async def main() -> None:
        cache, build = BuildCache(str(tmp_path)), Builder()
        path = await cache.get("one", build)
        Path(path, "bin").mkdir()
        Path(path, "bin", "python").symlink_to("/nowhere/python3.9")
        await cache.get("one", build)
        assert len(build.built) == 2

    asyncio.run(main())


def test_what_a_killed_server_started_is_waited_for(tmp_path: Path) -> None:
    """It still writes there."""

    async def main() -> None:
        left: list[subprocess.Popen[bytes]] = []

        async def build(path: str, lock: int) -> None:
            left.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[lock]))
            raise ValueError("killed")

        with pytest.raises(ValueError):
            await BuildCache(str(tmp_path)).get("one", build)
        second = asyncio.create_task(BuildCache(str(tmp_path)).get("one", Builder()))
        done, _ = await asyncio.wait([second], timeout=0.3)
        assert not done
        left[0].communicate(b"\n")
        assert await asyncio.wait_for(second, 10)

    asyncio.run(main())
