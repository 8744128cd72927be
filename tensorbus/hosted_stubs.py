"""The stub processes of a stub host: each with its environment, and with the files that came with it."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import structlog

from broker.backends import Backend
from broker.execution_env import ExecutionEnv
from metrics.stub_host_record import StubHostRecord
from protocol.errors import InternalError, ProtocolError, ServingError, Unavailable
from protocol.interpreters import Interpreter
from protocol.messages import Load
from protocol.services import Error, HeldStub, Start
from stub.launcher import Launcher
from tensorbus.environments import Environments
from tensorbus.logs import log_printed
from tensorbus.stub_paths import Places, write_files

log = structlog.get_logger()

Died = Callable[[str, int, Error], None]

_KILLED = -9
_MOST_NBYTES = 64 << 20  # of files that a broker is told


class _Stub(NamedTuple):
    places: Places
    directory: str  # of the files that came with it; "" without
    files: tuple[str, ...]  # their paths there
    starting: asyncio.Task[None]


class HostedStubs:
    """Invariant: ``_stubs`` has each key for which ``died`` is still to be called."""

    def __init__(
        self,
        bus: str,
        run_dir: str,
        shm_directory: str,
        environments: Environments,
        backends: Mapping[str, Backend],
        record: StubHostRecord,
        died: Died,
    ) -> None:
        """``died(key, status, error)``: with an error it could not be started."""
        self._launcher = Launcher(bus, run_dir, shm_directory, self._on_exit, log_printed)
        self._files_dir = os.path.join(run_dir, "files")
        self._environments = environments
        self._backends = backends
        self._record = record
        self._died = died
        self._stubs: dict[str, _Stub] = {}
        self._removing: set[asyncio.Task[None]] = set()
        self._is_closing = False

    def __len__(self) -> int:
        return len(self._stubs)

    async def open(self) -> None:
        await self._launcher.start()

    async def close(self) -> None:
        """Kills what is left; nobody is told."""
        self._is_closing = True
        for stub in self._stubs.values():
            stub.starting.cancel()
        await self._launcher.close()
        await asyncio.gather(*self._removing, return_exceptions=True)

    # --- start ----------------------------------------------------------------------------------------------------

    def start(self, start: Start, places: Places) -> None:
        """Raises ProtocolError."""
        if start.key in self._stubs:
            raise ProtocolError(f"Start of {start.key}, which there is already")
        directory = ""
        if start.files:
            directory = os.path.join(self._files_dir, secrets.token_hex(8))
            places = places.having(start.directory, directory)
        starting = asyncio.get_running_loop().create_task(self._starting(start, places, directory))
        self._stubs[start.key] = _Stub(places, directory, tuple(start.files), starting)
        self._record.instances += 1

    async def _starting(self, start: Start, places: Places, directory: str) -> None:
        error: ServingError
        try:
            if self._is_closing:
                raise Unavailable("the stub host is stopping")
            if directory:
                await asyncio.to_thread(write_files, directory, start.files)
            interpreter = await self._interpreter(start, places)
            self._launcher.spawn(start.key, start.title, interpreter)
            self._record.starts += 1
            return
        except ServingError as fault:
            error = fault
        except Exception as fault:
            log.error("a stub cannot be started", model=start.model, instance=start.instance, exc_info=fault)
            error = InternalError(f"an instance of '{start.model}' cannot be started on its stub host")
        self._is_dead(start.key, 0, (int(error.kind), str(error)))

    async def _interpreter(self, start: Start, places: Places) -> Interpreter | None:
        """Takes as long as unpacking or building does. Raises ServingError."""
        if start.environment is None:
            return None
        path, asked_by, is_requirements = start.environment
        return await self._environments.interpreter(ExecutionEnv(places.local(path), asked_by, is_requirements))

    def fit(self, key: str, load: Load) -> Load:
        """With its paths as they are here. The code of a backend that there is here is that."""
        stub = self._stubs.get(key)
        if stub is not None:
            load = stub.places.load(load)
        backend = self._backends.get(_backend_of(load))
        return load if backend is None else load._replace(model_file=backend.model_file)

    def with_files(self, stubs: list[HeldStub]) -> list[HeldStub]:
        """Where files were given with a model, the first of its stubs gets them."""
        left, told, found = _MOST_NBYTES, set(), []
        for stub in stubs:
            model = stub.model, stub.version, stub.stamp
            ours = self._stubs.get(stub.key)
            if ours is not None and stub.given is not None and stub.given.files and model not in told:
                told.add(model)
                stub = stub._replace(files=_read(ours, left))
                left -= sum(map(len, stub.files.values()))
            found.append(stub)
        return found

    # --- end ------------------------------------------------------------------------------------------------------

    def kill(self, key: str) -> None:
        self._end(key, self._launcher.kill)

    def abort(self, key: str) -> None:
        self._end(key, self._launcher.abort)

    def _end(self, key: str, end: Callable[[str], None]) -> None:
        stub = self._stubs.get(key)
        if stub is None:
            return  # it is dead, and that is on its way
        if stub.starting.done():
            end(key)
        else:
            stub.starting.cancel()
            self._is_dead(key, _KILLED, None)

    def _on_exit(self, key: str, status: int) -> None:
        self._record.deaths += 1
        self._is_dead(key, status, None)

    def _is_dead(self, key: str, status: int, error: Error) -> None:
        stub = self._stubs.pop(key)
        self._record.instances -= 1
        if stub.directory:
            removing = asyncio.get_running_loop().create_task(asyncio.to_thread(shutil.rmtree, stub.directory, True))
            self._removing.add(removing)
            removing.add_done_callback(self._removing.discard)
        self._died(key, status, error)


def _read(stub: _Stub, most_nbytes: int) -> dict[str, bytes]:
    """{} if they are more, or not there any more."""
    paths = {path: os.path.join(stub.directory, path) for path in stub.files}
    try:
        if sum(map(os.path.getsize, paths.values())) > most_nbytes:
            return {}
        return {path: Path(place).read_bytes() for path, place in paths.items()}
    except OSError:
        return {}


def _backend_of(load: Load) -> str:
    try:
        config = json.loads(load.args.get("model_config", "{}"))
        return str(config.get("backend", ""))
    except (ValueError, AttributeError):
        return ""
