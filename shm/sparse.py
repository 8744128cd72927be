"""A segment whose pages come as they are written: for memory of which most may never be used.

It is written to by system calls alone, so that a page that cannot be had is an error and no SIGBUS, and a large copy
holds no lock of the interpreter. It is read like any segment, where something was written.
"""

from __future__ import annotations

import os
from typing import Sequence, Union

from .errors import ShmFull
from .segment import HEADER_NBYTES, Segment


class SparseSegment:
    """Owns the segment. ``write`` may be called in any thread, by several at once for different places."""

    def __init__(self, directory: str, nbytes: int, tag: str = "") -> None:
        """Room for ``nbytes`` of data; ``tag`` as of ``Segment.create``. Raises ShmFull."""
        self._segment = Segment.create(directory, nbytes, reserve=False, tag=tag)
        try:
            self._fd = os.open(os.path.join(directory, self._segment.name), os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            self._segment.unlink()
            raise ShmFull("no shared memory: {}".format(error.strerror)) from None

    @property
    def name(self) -> str:
        return self._segment.name

    def write(self, start: int, pieces: Sequence[tuple[int, Union[memoryview, bytes]]]) -> None:
        """Each piece at its offset from ``start``, which counts from the first byte of data. Raises ShmFull."""
        for offset, data in pieces:
            left = memoryview(data)
            at = HEADER_NBYTES + start + offset
            try:
                while left:
                    written = os.pwrite(self._fd, left, at)
                    left, at = left[written:], at + written
            except OSError as error:
                raise ShmFull("no shared memory: {}".format(error.strerror)) from None

    def close(self) -> None:
        """No ``write`` runs any more. What is mapped stays readable."""
        os.close(self._fd)
        self._segment.unlink()
        self._segment.close()
