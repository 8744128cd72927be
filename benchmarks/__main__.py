"""``make bench``: this server and the real Triton on the same models, in turn, and a table of ratios.

python -m benchmarks [--triton SCRIPT | --ours-only] [--repeats N] [--seconds S] [--jobs PATTERN] [--quick]
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import sys
import time

from benchmarks import jobs, load, report
from benchmarks.server import OURS, Contender, triton

NO_TRITON = """no real Triton to compare with: name a script that takes a model repository and serves it on HTTP_PORT,
GRPC_PORT and METRICS_PORT by --triton or TENSORBUS_REAL_TRITON, or measure this server alone with --ours-only"""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    peer = parser.add_mutually_exclusive_group()
    peer.add_argument("--triton", metavar="SCRIPT", default=os.environ.get("TENSORBUS_REAL_TRITON"))
    peer.add_argument("--ours-only", action="store_true", help="measure this server alone")
    parser.add_argument("--repeats", type=int, default=5, help="rounds; medians are shown (5)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of load for each job and round (4)")
    parser.add_argument("--jobs", metavar="PATTERN", default="*", help=f"of {', '.join(jobs.NAMES)}")
    parser.add_argument("--quick", action="store_true", help="one round of a second: does it work?")
    options = parser.parse_args(arguments)
    if options.quick:
        options.repeats, options.seconds = 1, 1.0
    return options


def main() -> int:
    options = parse()
    if not (options.triton or options.ours_only):
        return _refuse(NO_TRITON)
    if missing := load.missing_tools():
        return _refuse(f"not installed: {', '.join(missing)}")
    names = [name for name in jobs.NAMES if fnmatch.fnmatch(name, options.jobs)]
    if not names:
        return _refuse(f"no job matches '{options.jobs}': there are {', '.join(jobs.NAMES)}")
    theirs = None if options.ours_only else triton(options.triton)
    measured = measure([OURS, theirs] if theirs else [OURS], names, options)
    their_name = theirs.name if theirs else None
    print(report.table(measured.rows(OURS.name, their_name), OURS.name, their_name))
    return 0


def measure(contenders: list[Contender], names: list[str], options: argparse.Namespace) -> report.Report:
    """Who goes first changes from round to round: what the machine does meanwhile then favours nobody."""
    collected = report.Report()
    start = time.monotonic()
    for turn in range(options.repeats):
        for contender in contenders if turn % 2 == 0 else reversed(contenders):
            for name, figures in jobs.run_once(contender, names, options.seconds):
                collected.add(name, contender.name, figures)
                told = ", ".join(f"{metric} {figure:.4g}" for metric, figure in figures.items())
                place = f"{time.monotonic() - start:5.0f} s  {turn + 1}/{options.repeats}"
                print(f"{place}  {contender.name:<9}  {name}: {told}", file=sys.stderr, flush=True)
    return collected


def _refuse(reason: str) -> int:
    print(f"benchmarks: {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
