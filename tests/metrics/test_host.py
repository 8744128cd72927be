import tempfile
from pathlib import Path

from metrics.host import HostSample, HostSampler


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def write_proc(proc: Path, busy: int, idle: int, available_kib: int = 400) -> None:
    (proc / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 99 99\ncpu0 1 2 3\n")
    (proc / "meminfo").write_text(f"MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: {available_kib} kB\n")


def test_the_utilization_is_the_mean_between_two_samples(tmp_path: Path) -> None:
    write_proc(tmp_path, busy=1000, idle=1000)
    clock = Clock()
    sampler = HostSampler(2.0, tmp_path, clock, tmp_path / "none")

    write_proc(tmp_path, busy=1030, idle=1070, available_kib=300)
    clock.now += 2.0
    assert sampler.sample() == HostSample(0.3, 1000 * 1024, 700 * 1024)


def test_a_sample_younger_than_the_interval_is_kept(tmp_path: Path) -> None:
    write_proc(tmp_path, busy=1000, idle=1000)
    clock = Clock()
    sampler = HostSampler(2.0, tmp_path, clock)
    first = sampler.sample()

    write_proc(tmp_path, busy=2000, idle=1000)
    clock.now += 1.9
    assert sampler.sample() is first
    clock.now += 0.1
    assert sampler.sample().cpu_utilization == 1.0


def test_without_proc_nothing_is_known(tmp_path: Path) -> None:
    assert HostSampler(0.0, tmp_path, shm=tmp_path / "none").sample() == HostSample()


def test_shared_memory_in_use_is_what_files_take() -> None:
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(bytes(8 << 20))
        file.flush()
        sample = HostSampler(0.0).sample()
    assert sample.shm_used_bytes is not None and sample.shm_total_bytes is not None
    assert 8 << 20 <= sample.shm_used_bytes <= sample.shm_total_bytes


def test_this_machine_is_within_range() -> None:
    sample = HostSampler(0.0).sample()
    assert sample.cpu_utilization is not None and 0.0 <= sample.cpu_utilization <= 1.0
    assert sample.memory_total_bytes and sample.memory_used_bytes
    assert sample.memory_used_bytes < sample.memory_total_bytes
