"""A report's ratios are those of runs made side by side."""

from __future__ import annotations

from benchmarks.report import Report, table

THROUGHPUT = "throughput"


def test_the_ratio_is_the_median_of_the_ratios_of_each_round() -> None:
    report = Report()
    for ours, theirs in ((100.0, 50.0), (10.0, 20.0), (30.0, 10.0)):
        report.add("job", "ours", {THROUGHPUT: ours})
        report.add("job", "theirs", {THROUGHPUT: theirs})
    (row,) = report.rows("ours", "theirs")
    assert (row.ours, row.theirs, row.ratio) == (30.0, 20.0, 2.0)


def test_without_a_peer_there_is_no_ratio() -> None:
    report = Report()
    report.add("job", "ours", {THROUGHPUT: 5.0})
    (row,) = report.rows("ours", None)
    assert (row.theirs, row.ratio) == (None, None)


def test_the_table_tells_unit_ratio_and_which_way_is_better() -> None:
    report = Report()
    report.add("job", "ours", {THROUGHPUT: 5000.0})
    report.add("job", "theirs", {THROUGHPUT: 2500.0})
    head, _, line = table(report.rows("ours", "theirs"), "ours", "theirs").splitlines()
    assert "ratio" in head
    assert [cell.strip() for cell in line.strip("|").split("|")] == [
        "job", "throughput", "requests/s", "5,000", "2,500", "2.00x", "higher",
    ]  # fmt: skip
