"""Where a stub host has what the broker names by paths of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from protocol.errors import ProtocolError
from protocol.messages import Load

_IN_ARGUMENTS = "model_repository"  # of ``initialize``: the model's directory


class Places:
    """Directories of the broker's and what stands for each here."""

    def __init__(self, theirs: Sequence[str] = (), ours: Sequence[str] = ()) -> None:
        """The first that has no counterpart here, and those behind it, are where they are."""
        self._pairs = [(os.path.normpath(one), other) for one, other in zip(theirs, ours, strict=False)]

    def having(self, theirs: str, ours: str) -> Places:
        """These and one more."""
        places = Places()
        places._pairs = [*self._pairs, (os.path.normpath(theirs), ours)]
        return places

    def local(self, path: str) -> str:
        """What lies in none of them is where it says."""
        inside = [pair for pair in self._pairs if path == pair[0] or path.startswith(pair[0].rstrip("/") + "/")]
        if not inside:
            return path
        theirs, ours = max(inside, key=lambda pair: len(pair[0]))
        rest = path[len(theirs) :].lstrip("/")
        return os.path.join(ours, rest) if rest else ours

    def load(self, load: Load) -> Load:
        """With its paths as they are here."""
        args = dict(load.args)
        if _IN_ARGUMENTS in args:
            args[_IN_ARGUMENTS] = self.local(args[_IN_ARGUMENTS])
        return load._replace(
            model_file=self.local(load.model_file), version_directory=self.local(load.version_directory), args=args
        )


def write_files(directory: str, files: Mapping[str, bytes]) -> None:
    """Makes the directory, for this user alone. Raises ProtocolError for a path that leads out of it, and OSError."""
    for path in files:
        if os.path.isabs(path) or os.path.normpath(path) != path or path.split("/")[0] in ("..", ".") or "\0" in path:
            raise ProtocolError(f"file {path!r} of a model, which does not lie in its directory")
    os.makedirs(directory, 0o700)
    for path, content in files.items():
        place = os.path.join(directory, path)
        os.makedirs(os.path.dirname(place), 0o700, exist_ok=True)
        with open(place, "xb") as file:
            file.write(content)
