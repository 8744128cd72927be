"""The table of a benchmark: medians of each contender, and the median of the ratios of runs made side by side."""

from __future__ import annotations

import statistics
from typing import NamedTuple

from benchmarks.jobs import METRICS, Figures


class Row(NamedTuple):
    job: str
    metric: str
    ours: float
    theirs: float | None
    ratio: float | None


class Report:
    """Collects the figures of every run; the runs of one round are compared with each other."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[str, list[Figures]]] = {}  # job, contender, round

    def add(self, job: str, contender: str, figures: Figures) -> None:
        self._runs.setdefault(job, {}).setdefault(contender, []).append(figures)

    def rows(self, ours: str, theirs: str | None) -> list[Row]:
        return [
            _row(job, metric, runs[ours], runs.get(theirs, []) if theirs else [])
            for job, runs in self._runs.items()
            if ours in runs
            for metric in runs[ours][0]
        ]


def _row(job: str, metric: str, ours: list[Figures], theirs: list[Figures]) -> Row:
    our_median = statistics.median(run[metric] for run in ours)
    if not theirs:
        return Row(job, metric, our_median, None, None)
    their_median = statistics.median(run[metric] for run in theirs)
    ratio = statistics.median(our[metric] / their[metric] for our, their in zip(ours, theirs, strict=False))
    return Row(job, metric, our_median, their_median, ratio)


def table(rows: list[Row], ours: str, theirs: str | None) -> str:
    head = ["job", "metric", "unit", ours, theirs or "", "ratio", "better"]
    lines = [head]
    for row in rows:
        metric = METRICS[row.metric]
        numbers = [f"{number:,.3g}" if number < 1000 else f"{number:,.0f}" for number in (row.ours, row.theirs or 0)]
        their_text, ratio = (numbers[1], f"{row.ratio:.2f}x") if row.ratio is not None else ("", "")
        lines.append([row.job, row.metric, metric.unit, numbers[0], their_text, ratio, metric.better])
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    text = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    text.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(text)
