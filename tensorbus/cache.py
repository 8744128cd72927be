"""The response cache, made as the settings want it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import structlog

from broker.cache_memory import CacheMemory
from broker.response_cache import ResponseCache
from metrics.cache_record import CacheRecord
from shm.errors import ShmFull
from shm.sparse import SparseSegment
from shm.store import Reader

log = structlog.get_logger()


class Cache(NamedTuple):
    responses: ResponseCache
    memory: CacheMemory


def open_cache(
    nbytes: int,
    shm_directory: str,
    reader: Reader,
    memory: Callable[[SparseSegment, Reader], CacheMemory] = CacheMemory,
    tag: str = "",
) -> Cache | None:
    """None if none is wanted, or there is no shared memory. At most half of the shared memory: tensors need it, too.
    ``tag``: of the segment (``Segment.create``)."""
    if not nbytes:
        return None
    found = os.statvfs(shm_directory)
    most = found.f_blocks * found.f_frsize // 2
    if nbytes > most:
        cause = f"it may have half of the shared memory: {most} bytes"
        log.warning("the response cache is smaller than asked for", cause=cause)
        nbytes = most
    try:
        segment = SparseSegment(shm_directory, nbytes, tag)
    except ShmFull as error:
        log.warning("there is no response cache", cause=str(error))
        return None
    log.info(f"Response Cache is created with size {nbytes}")
    return Cache(ResponseCache(segment.name, CacheRecord(nbytes)), memory(segment, reader))
