from __future__ import annotations

from pathlib import Path

import pytest

from tensorbus.gpus import usable


@pytest.fixture
def devices(tmp_path: Path) -> str:
    for name in ("null", "nvidia0", "nvidia1", "nvidia3", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    return str(tmp_path)


def test_cuda_counts_what_it_sees(devices: str) -> None:
    assert usable({}, devices) == (0, 1, 2)


@pytest.mark.parametrize(
    "visible, ids",
    [
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("2", (0,)),
        ("2, 0", (0, 1)),
        ("1,-1,2", (0,)),
        ("1,7,2", (0,)),
        ("1,1", (0,)),
        ("GPU-8932f937,GPU-1", (0, 1)),
        ("MIG-4b6", (0,)),
    ],
)
def test_only_what_cuda_is_told_to_see_is_there(devices: str, visible: str, ids: tuple[int, ...]) -> None:
    assert usable({"CUDA_VISIBLE_DEVICES": visible}, devices) == ids


def test_without_device_files_there_are_none(tmp_path: Path) -> None:
    assert usable({"CUDA_VISIBLE_DEVICES": "0"}, str(tmp_path)) == ()
    assert usable({}, str(tmp_path / "absent")) == ()
