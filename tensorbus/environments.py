"""Python environments of models."""

from __future__ import annotations

from broker.execution_env import ExecutionEnv
from protocol.errors import Unsupported
from protocol.interpreters import Interpreter


class Environments:
    def __init__(self, run_dir: str, cache: str) -> None:
        self._run_dir = run_dir
        self._cache = cache

    async def interpreter(self, env: ExecutionEnv) -> Interpreter:
        raise Unsupported(env.asked_by)
