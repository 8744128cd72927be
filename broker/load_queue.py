"""Model versions on their way up: those in line, those being loaded, and those for which there is no host yet. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from broker.model import ModelVersion, VersionState


class LoadQueue:
    """So many ``places`` are taken by versions that are being loaded. More only if one must not wait: those that
    ``skip`` the line have no place, those that ``begin_again`` take one all the same."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._waiting: deque[ModelVersion] = deque()
        self._loading: set[ModelVersion] = set()
        self._homeless: dict[ModelVersion, None] = {}  # an ordered set

    @property
    def is_empty(self) -> bool:
        return not self._waiting and not self._loading and not self._homeless

    def add(self, version: ModelVersion) -> None:
        self._waiting.append(version)

    def next(self) -> ModelVersion | None:
        """The first in line, which has a place now; None if there is nobody, or no place."""
        while self._waiting and len(self._loading) < self._places:
            version = self._waiting.popleft()
            if version.state is VersionState.LOADING or version.update is not None:  # else it was given up
                self._loading.add(version)
                return version
        return None

    def skip(self, version: ModelVersion) -> bool:
        """Whether it was in line, which it is no longer."""
        if version not in self._waiting:
            return False
        self._waiting.remove(version)
        return True

    def begin_again(self, version: ModelVersion) -> bool:
        """Whether it is to be loaded anew at once: it was beyond the line."""
        if version in self._homeless or version in self._waiting:
            return False
        self._loading.add(version)
        return True

    def leave(self, version: ModelVersion) -> None:
        """It is up, has failed or was given up. One that is given up in line is passed over when its turn comes."""
        self._loading.discard(version)
        self._homeless.pop(version, None)

    def wait_for_host(self, version: ModelVersion) -> None:
        self._loading.discard(version)
        self._homeless[version] = None

    def found_hosts(self, has_host: Callable[[ModelVersion], bool]) -> None:
        """Those that have one stand in line again."""
        found = [version for version in self._homeless if has_host(version)]
        for version in found:
            del self._homeless[version]
        self._waiting.extend(found)
