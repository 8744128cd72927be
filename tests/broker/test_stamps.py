"""How a change of a model's files is noticed."""

from __future__ import annotations

import os
from pathlib import Path

from broker.stamps import fingerprint, stamps


def model(folder: Path) -> Path:
    (folder / "m" / "1").mkdir(parents=True)
    (folder / "m" / "1" / "model.py").touch()
    return folder / "m"


def test_a_fingerprint_changes_with_any_file_and_not_with_what_python_leaves(tmp_path: Path):
    path = model(tmp_path)
    seen = [fingerprint(str(path))]
    (path / "1" / "__pycache__").mkdir()
    (path / "1" / "__pycache__" / "model.pyc").write_text("x")
    assert fingerprint(str(path)) == seen[0]
    linked = tmp_path / "linked"
    linked.mkdir()
    for change in (
        lambda: (path / "1" / "model.py").write_text("x"),
        lambda: os.utime(path / "1" / "model.py", (1, 1)),  # older is different, too
        lambda: (path / "2").mkdir(),
        lambda: (path / "labels.txt").touch(),
        lambda: (path / "labels.txt").rename(path / "names.txt"),
        lambda: (path / "1" / "data").symlink_to(linked),
        lambda: (linked / "weights").write_text("x"),
        lambda: (path / "1" / "dangling").symlink_to("nowhere"),
        lambda: (path / "1" / "again").symlink_to(path),
    ):
        change()
        seen.append(fingerprint(str(path)))
    assert len(set(seen)) == len(seen)


def test_files_have_size_and_time_and_the_order_is_that_of_the_names(tmp_path: Path):
    path = model(tmp_path)
    (path / "1" / "a").write_text("12345")
    os.utime(path / "1" / "a", ns=(7, 7))
    (path / "1" / "dangling").symlink_to("nowhere")
    found = list(stamps(str(path)))
    assert [name for name, _ in found] == ["1", "1/a", "1/dangling", "1/model.py"]
    assert dict(found)["1/a"] == (5, 7)
    assert dict(found)["1"] is None and dict(found)["1/dangling"] is None
