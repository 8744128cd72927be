import os

from tensorbus.reload import Watcher, changed, snapshot

BEFORE = {"1/model.py": (10, 1), "1/weights": (20, 1)}
AFTER = BEFORE | {"1/model.py": (11, 2)}


def test_nothing_changed_is_no_reason():
    watch = Watcher(BEFORE)
    assert watch.look(BEFORE) == []
    assert watch.look(BEFORE) == []


def test_a_change_counts_once_it_has_settled_and_once():
    watch = Watcher(BEFORE)
    assert watch.look(AFTER) == []
    assert watch.look(AFTER | {"1/helper.py": (1, 3)}) == []
    assert watch.look(AFTER | {"1/helper.py": (1, 3)}) == ["1/helper.py", "1/model.py"]
    assert watch.look(AFTER | {"1/helper.py": (1, 3)}) == []


def test_files_that_come_and_go_and_data_count():
    assert changed(BEFORE, {}) == ["1/model.py", "1/weights"]
    watch = Watcher(BEFORE)
    now = {"1/model.py": (10, 1), "config.pbtxt": (1, 1)}
    watch.look(now)
    assert watch.look(now) == ["1/weights", "config.pbtxt"]


def test_what_was_undone_in_time_is_no_reason():
    watch = Watcher(BEFORE)
    watch.look(AFTER)
    assert watch.look(BEFORE) == []
    assert watch.look(BEFORE) == []


def test_code_that_changed_during_the_load_is_a_reason_for_the_next():
    watch = Watcher(BEFORE)
    watch.look(AFTER)
    watch.look(AFTER)
    later = AFTER | {"1/model.py": (12, 3)}
    watch.ended(later)
    watch.look(later)
    assert watch.look(later) == ["1/model.py"]


def test_data_that_the_load_has_written_is_none():
    watch = Watcher(BEFORE)
    watch.look(AFTER)
    watch.look(AFTER)
    written = AFTER | {"1/cache": (1, 1), "1/weights": (21, 4)}
    watch.ended(written)
    watch.look(written)
    assert watch.look(written) == []


def test_a_snapshot_has_all_files_below_but_what_python_makes(tmp_path):
    (tmp_path / "1" / "__pycache__").mkdir(parents=True)
    (tmp_path / "1" / "__pycache__" / "model.pyc").write_text("")
    (tmp_path / "1" / "model.py").write_text("12345")
    (tmp_path / "config.pbtxt").write_text("")
    os.symlink(tmp_path, tmp_path / "1" / "back")
    os.symlink("nowhere", tmp_path / "1" / "broken")
    shot = snapshot(str(tmp_path))
    assert set(shot) == {"1/model.py", "config.pbtxt"}
    assert shot["1/model.py"][0] == 5
