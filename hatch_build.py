"""Puts the modules that a model imports at the top level of the wheel too: a model can be tested without a server.

They stay in ``stub/api`` as well, the one folder that a stub adds to its path. hatchling moves a file of the project
that it is told to include elsewhere; hence copies of them from outside the project.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class TopLevelModules(BuildHookInterface):  # type: ignore[type-arg]
    _copies = ""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return  # dev-mode-dirs names the folder itself
        self._copies = tempfile.mkdtemp()
        for path in sorted(Path(self.root, "stub", "api").glob("*.py")):
            build_data["force_include"][shutil.copy(path, self._copies)] = path.name

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(self._copies, ignore_errors=True)
