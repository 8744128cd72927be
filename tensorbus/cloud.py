"""Model repositories in object stores, as local directories that are brought up to date before anybody reads them.

``look`` finds out what there is, without fetching anything; ``localise`` fetches what has changed of one model. In
between they are directories like any others. They lie in the server's own directory, or in one in the place that the
operator names, and go with the server; what a server that was killed has left there goes when the next one starts.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from contextlib import ExitStack

from protocol.errors import InternalError
from tensorbus.cloud_location import CloudSettings, is_cloud, locate, mount_directory
from tensorbus.cloud_mirror import Mirror
from tensorbus.cloud_objects import Objects
from tensorbus.run_directory import run_directory


class Cloud:
    """Calls block, and may come from any thread."""

    def __init__(self, repositories: Sequence[str], settings: CloudSettings, run_dir: str) -> None:
        self.paths: list[str] = list(repositories)  # local ones; from ``open`` on
        self._settings = settings
        self._root = os.path.join(run_dir, "repositories")
        self._mirrors: list[Mirror] = []
        self._resources = ExitStack()

    def open(self) -> None:
        """Raises ServingError for a repository that cannot be opened."""
        for number, url in enumerate(self.paths):
            if is_cloud(url):
                mirror = self._mirror(url)
                self._mirrors.append(mirror)
                self.paths[number] = mirror.path

    def _mirror(self, url: str) -> Mirror:
        location = locate(url)
        mount = mount_directory(location.scheme, self._settings)
        try:
            root = self._resources.enter_context(run_directory(mount)) if mount else self._root
            directory = os.path.join(root, str(len(self._mirrors)))
            return Mirror(Objects(location, self._settings), directory)
        except OSError as error:
            raise InternalError(f"no local copy of {url} can be made: {error.strerror or error}") from None

    @property
    def holds_copies(self) -> bool:
        return bool(self._mirrors)

    def stop(self) -> None:
        """What is being fetched is given up: calls that still block fail."""
        for mirror in self._mirrors:
            mirror.stop()

    def close(self) -> None:
        """After ``stop``, and the last process that uses the copies."""
        self._resources.close()

    def look(self, models: Collection[str] | None = None) -> None:
        """At what there is of some models, or of all. Raises ServingError."""
        for mirror in self._mirrors:
            mirror.look(None if models is None else sorted(models))

    def look_at_names(self) -> None:
        """Raises ServingError."""
        for mirror in self._mirrors:
            mirror.look_at_names()

    def stamp(self, directory: str) -> str:
        """Of a model as it was at the last look; another one when anything has changed. "" if it is none of ours."""
        repository, model = os.path.split(directory)
        return next((mirror.stamp(model) for mirror in self._mirrors if mirror.path == repository), "")

    def localise(self, directory: str) -> None:
        """Fetches what has changed of a model before the last look, if it is one of ours. Raises ServingError."""
        repository, model = os.path.split(directory)
        for mirror in self._mirrors:
            if mirror.path == repository:
                mirror.localise(model)
                return

    def forget(self, unloaded: Collection[str]) -> None:
        """Gives the disk of models back that stay unloaded from one call to the next; they go by their directories."""
        for mirror in self._mirrors:
            mirror.forget({os.path.basename(path) for path in unloaded if os.path.dirname(path) == mirror.path})
