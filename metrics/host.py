"""CPU and memory use of the whole machine, and that of shared memory, read when asked; elsewhere than on Linux there
is none."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import NamedTuple


class HostSample(NamedTuple):
    """What is known of the machine; None = unknown."""

    cpu_utilization: float | None = None  # 0.0 to 1.0 over all CPUs
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    shm_total_bytes: int | None = None  # of the file system, whoever uses it
    shm_used_bytes: int | None = None


class HostSampler:
    """Takes a sample when asked, but none younger than the interval: no timer wakes an idle server.

    The utilization is the mean between two samples, so a scraper sees that of its own interval.
    """

    def __init__(
        self,
        interval_s: float,
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = monotonic,
        shm: Path = Path("/dev/shm"),
    ) -> None:
        self._interval_s = interval_s
        self._proc = proc
        self._shm = shm
        self._clock = clock
        self._taken_at = clock()
        self._cpu_times = self._read_cpu_times()
        self._sample = self._take(0.0)

    def sample(self) -> HostSample:
        """The latest sample. Not for two threads at once."""
        now = self._clock()
        if now - self._taken_at >= self._interval_s:
            self._taken_at = now
            self._sample = self._take(self._sample.cpu_utilization or 0.0)
        return self._sample

    def _take(self, last_utilization: float) -> HostSample:
        memory = self._read_memory()
        shm = self._read_shm()
        before, self._cpu_times = self._cpu_times, self._read_cpu_times()
        if memory is None or before is None or self._cpu_times is None:
            return HostSample(None, None, None, *shm)
        busy, total = (after - earlier for after, earlier in zip(self._cpu_times, before, strict=True))
        # No tick has passed between two quick reads: the old figure is still the best one.
        utilization = min(max(busy / total, 0.0), 1.0) if total > 0 else last_utilization
        return HostSample(utilization, *memory, *shm)

    def _read_cpu_times(self) -> tuple[int, int] | None:
        """Busy and total ticks of all CPUs since boot, from the first line of /proc/stat."""
        try:
            first_line = (self._proc / "stat").read_text().split("\n", 1)[0]
        except OSError:
            return None
        # cpu user nice system idle iowait irq softirq steal [guest guest_nice: already in user and nice]
        ticks = [int(field) for field in first_line.split()[1:9]]
        total = sum(ticks)
        return total - ticks[3] - ticks[4], total

    def _read_memory(self) -> tuple[int, int] | None:
        """Total and used bytes: MemTotal, and MemTotal - MemAvailable."""
        try:
            lines = (self._proc / "meminfo").read_text().splitlines()
        except OSError:
            return None
        kibibytes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        total = kibibytes["MemTotal"] * 1024
        return total, total - kibibytes["MemAvailable"] * 1024

    def _read_shm(self) -> tuple[int | None, int | None]:
        """Total and used bytes."""
        try:
            found = os.statvfs(self._shm)
        except OSError:
            return None, None
        return found.f_blocks * found.f_frsize, (found.f_blocks - found.f_bfree) * found.f_frsize
