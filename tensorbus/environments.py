"""The Python environments that models ask for: found, unpacked or built, and completed with what a stub needs.

An archive is unpacked once for each content of it, into the server's run directory: that is private, and goes with the
server however it ends. What is built from a requirements file, and the packages that an environment lacks, are kept in
the cache directory, for later servers too.

An environment may have any Python from 3.9 on. What it lacks of a stub's packages is searched last,
after all of its own.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import itertools
import json
import os
import platform
import posixpath
import re
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import structlog

import stub
from broker.execution_env import ExecutionEnv
from protocol.errors import InternalError
from protocol.interpreters import Interpreter, activated, bare
from tensorbus import installer, tool
from tensorbus.archive import ArchiveError, extract
from tensorbus.build_cache import BuildCache
from tensorbus.installer import NoInstaller
from tensorbus.tool import ToolFailed

log = structlog.get_logger()

# By the module that a stub imports: distribution and oldest version that will do.
_SUPPLIED = {"numpy": ("numpy", "1.23"), "msgpack": ("msgpack", "1.0")}
_NEEDS = "the environment of a model needs numpy and msgpack"
_REPORT = str(Path(stub.__file__).parent / "interpreter_report.py")
_PLACE = re.compile(r"""\w+://[^\s'"`]+|(?<![\w.])/[^\s'"`:,;)]+""")
_QUIET = {"NO_COLOR": "1", "PIP_PROGRESS_BAR": "off", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
_REPORT_TIMEOUT_S = 60.0
_BUILD_TIMEOUT_S = 3600.0
_UNPACK_TIMEOUT_S = 600.0
_PROGRESS_S = 5.0


class Report(NamedTuple):
    """What an environment's Python says of itself (stub/interpreter_report.py)."""

    version: tuple[int, ...]
    new_enough: bool
    abi: str = ""
    missing: tuple[str, ...] = ()
    has_pip: bool = False

    @property
    def name(self) -> str:
        return "Python " + ".".join(map(str, self.version))


class _Content(NamedTuple):
    """What an archive is known by: if it changes, it is unpacked again."""

    path: str
    mtime_ns: int
    nbytes: int


class Environments:
    def __init__(self, run_dir: str, cache_directory: str) -> None:
        self._unpacked_dir = os.path.join(run_dir, "environments")
        self._temporary_dir = os.path.join(run_dir, "temporary")
        self._cache = BuildCache(cache_directory)
        self._unpacked: dict[_Content, asyncio.Task[str]] = {}
        self._numbers = itertools.count()

    async def interpreter(self, env: ExecutionEnv) -> Interpreter:
        """Takes as long as unpacking or building does. Raises InternalError, which says what is wrong with it."""
        try:
            prefix = await self._prefix(env)
            python = _python(prefix)
            report = await _report(python, prefix)
            packages = await self._supplied(python, report)
        except ToolFailed as error:
            log.error("an environment cannot be prepared", cause=str(error))
            raise InternalError(f"{env.asked_by}: {_without_places(str(error))}") from error
        except (ArchiveError, NoInstaller) as error:
            raise InternalError(f"{env.asked_by}: {_shown(str(error))}") from error
        except OSError as error:
            log.error("an environment cannot be prepared", cause=str(error))  # with the path, which is the operator's
            raise InternalError(f"{env.asked_by}: {_advice(error)}") from error
        log.info(f"{env.asked_by}: {report.name}", supplied=" ".join(report.missing) or "nothing")
        return Interpreter(python, prefix, packages)

    async def _prefix(self, env: ExecutionEnv) -> str:
        """The environment's directory."""
        if env.is_requirements:
            return await self._built(env)
        if os.path.isdir(env.path):
            return os.path.abspath(env.path)
        if os.path.exists(env.path):
            return await self._extracted(env.path)
        raise InternalError(f"Failed to get the canonical path for {env.path}. {env.asked_by} is not there.")

    # --- archives -------------------------------------------------------------------------------------------------

    async def _extracted(self, path: str) -> str:
        """Models that come meanwhile wait for the same task; one that failed is tried again at the next load."""
        status = os.stat(path)
        content = _Content(os.path.realpath(path), status.st_mtime_ns, status.st_size)
        task = self._unpacked.get(content)
        if task is None:
            task = self._unpacked[content] = asyncio.create_task(self._extract(path))
        try:
            return await task
        except ArchiveError as error:
            raise ArchiveError(f"the archive cannot be unpacked: {error}") from error
        finally:
            if task.done() and (task.cancelled() or task.exception()):
                self._unpacked.pop(content, None)

    async def _extract(self, path: str) -> str:
        os.makedirs(self._unpacked_dir, 0o700, exist_ok=True)
        directory = os.path.join(self._unpacked_dir, str(next(self._numbers)))
        log.info(f"Extracting Python execution env {path}")
        stop = threading.Event()
        extracting = asyncio.get_running_loop().run_in_executor(None, extract, path, directory, _Progress(path), stop)
        try:
            await asyncio.shield(extracting)
        except BaseException:
            stop.set()
            await asyncio.wait([extracting])  # what removes the directory must come after its last file
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
            raise
        await _relocate(directory)
        return directory

    # --- requirements ---------------------------------------------------------------------------------------------

    async def _built(self, env: ExecutionEnv) -> str:
        requirements = Path(env.path)
        wished = _wished_version(requirements.with_name(".python-version"))
        key = json.dumps([requirements.read_bytes().hex(), wished or [platform.python_version(), sys.base_prefix]])
        name = os.path.join("environments", hashlib.sha256(key.encode()).hexdigest()[:32])

        async def build(directory: str, lock: int) -> None:
            uv = installer.find_uv()
            python = wished or sys.executable
            if wished and not uv:
                python = installer.find_python(wished)
            log.info(f"building the environment from {env.asked_by}", python=wished or platform.python_version())
            for command in installer.make_environment(uv, python, requirements.name, directory):
                await self._install(command, lock, cwd=str(requirements.parent))

        try:
            return await self._cache.get(name, build)
        except (ToolFailed, NoInstaller) as error:
            raise ToolFailed(f"the environment cannot be built:\n{error}") from error

    # --- what the environment lacks -------------------------------------------------------------------------------

    async def _supplied(self, python: str, report: Report) -> list[str]:
        """The directory that holds just what is missing, if anything is."""
        if not report.missing:
            return []
        missing = [_SUPPLIED[module] for module in report.missing]
        name = os.path.join("packages", report.abi, "+".join("-".join(package) for package in missing))
        requirements = [">=".join(package) for package in missing]

        async def build(directory: str, lock: int) -> None:
            log.info(f"building {' '.join(requirements)} for {report.name}")
            scratch = f"{directory}.scratch"
            uv = installer.find_uv()
            try:
                for command in installer.install_apart(uv, python, report.has_pip, requirements, directory, scratch):
                    await self._install(command, lock, cwd=os.path.dirname(directory))
            finally:
                await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)

        try:
            return [await self._cache.get(name, build)]
        except ToolFailed as error:
            lacking = ", ".join(distribution for distribution, _ in missing)
            raise ToolFailed(f"{_NEEDS}; it lacks {lacking}, which cannot be installed:\n{error}") from error

    async def _install(self, command: installer.Command, lock: int, cwd: str) -> None:
        """A command of uv's or pip's, whose lines are the progress."""
        name = "uv" if os.path.basename(command[0]) == "uv" or command[1:3] == ["-m", "uv"] else "pip"
        os.makedirs(self._temporary_dir, 0o700, exist_ok=True)
        environ = {**bare(os.environ), **_QUIET, "TMPDIR": self._temporary_dir}  # pip leaves files there
        await tool.run(
            command, environ, _BUILD_TIMEOUT_S, lambda line: log.info(f"{name}: {line.strip()}"), cwd, [lock]
        )


class _Progress:
    """Says now and then how far an extraction is; called in its thread."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._say_at = time.monotonic() + _PROGRESS_S

    def __call__(self, members: int) -> None:
        now = time.monotonic()
        if now >= self._say_at:
            self._say_at = now + _PROGRESS_S
            log.info(f"still unpacking {self._path}", members=members)


def _wished_version(path: Path) -> str:
    try:
        return installer.wished_version(path.read_text(errors="replace"))
    except FileNotFoundError:
        return ""


def _shown(text: str) -> str:
    """Names in an archive need not be UTF-8; what clients are told must."""
    return text.encode(errors="backslashreplace").decode()


def _without_places(text: str) -> str:
    """What a tool says is for the author; where this host has its files and packages is not for clients."""
    return _PLACE.sub(lambda place: ".../" + posixpath.basename(place[0].rstrip("/")), _shown(text))


def _advice(error: OSError) -> str:
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
        return f"{reason}; TMPDIR and TENSORBUS_CACHE tell the server where it may write"
    return reason


def _python(prefix: str) -> str:
    """Raises InternalError; the first text is Triton's."""
    for name in ("python", "python3"):
        path = os.path.join(prefix, "bin", name)
        if os.path.exists(path):
            return path
    activate = os.path.join(prefix, "bin", "activate")
    if not os.path.exists(activate):
        raise InternalError(
            f"Path {activate} does not exist. The Python environment should contain an 'activate' script."
        )
    raise InternalError(
        f"Path {prefix}/bin/python does not exist. The Python environment should contain its interpreter."
    )


async def _report(python: str, prefix: str) -> Report:
    """Raises ToolFailed, InternalError."""
    line = await tool.run([python, _REPORT], activated(os.environ, prefix), _REPORT_TIMEOUT_S)
    try:
        report = Report(**json.loads(line))
    except (ValueError, TypeError):
        raise ToolFailed(f"its Python does not say what it is, but '{line}'") from None
    if not report.new_enough:
        raise ToolFailed(f"{report.name} is too old: models run on Python 3.9 and later")
    return report


async def _relocate(prefix: str) -> None:
    """Have conda-pack's own script write the new place into the files that hold the old one (scripts, certificates'
    paths). Triton leaves that out; an environment that does without goes on without."""
    script = os.path.join(prefix, "bin", "conda-unpack")
    if os.path.isfile(script):
        try:
            await tool.run([_python(prefix), script], activated(os.environ, prefix), _UNPACK_TIMEOUT_S)
        except (ToolFailed, InternalError) as error:
            log.warning("conda-unpack failed; the environment is used as it is", cause=str(error))
