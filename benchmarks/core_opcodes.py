"""What a request costs the core of the broker in bytecodes of Python, which are the same in every run: where others use
the machine, too, times differ by more than most changes.

    python -m benchmarks.core_opcodes [--waiting 4] [--functions 20]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from benchmarks import broker_scale

_STEPS = 3
_ROUNDS = 20
_ENSEMBLE = "e"


class _Stand(broker_scale.Stand):
    execute_ns = 10_000  # so short that a stub gets all that waits in one message


def opcodes(work: Callable[[], None]) -> Counter[CodeType]:
    """Executed by ``work``, by function."""
    counted: Counter[CodeType] = Counter()

    def count(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            counted[frame.f_code] += 1
        return count

    def enter(frame: FrameType, event: str, arg: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return count

    sys.settrace(enter)
    try:
        work()
    finally:
        sys.settrace(None)
    return counted


def measure(model: str, waiting: int) -> Counter[str]:
    """Of a request to "0", or to the ensemble "e" of three models, by the name and the file of the function; so many
    requests go the way together."""
    stand = _Stand(_STEPS, ensemble=True, lends=True)
    keys = stand.keys if model == _ENSEMBLE else stand.keys[:1]

    def round_trip() -> None:
        for _ in range(waiting):
            stand.submit(model)
        stand.turn()
        for key in keys:
            stand.answer(key)
            stand.turn()
        stand.read()

    def rounds() -> None:
        for _ in range(_ROUNDS):
            round_trip()

    rounds()  # until it is known how short the executions are
    cost: Counter[str] = Counter()
    for code, count in opcodes(rounds).items():
        if code.co_filename not in (__file__, broker_scale.__file__):
            place = "/".join(code.co_filename.split("/")[-2:])
            cost[f"{code.co_name} {place}"] += count
    return Counter({name: round(count / _ROUNDS / waiting) for name, count in cost.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=int, default=4, help="requests that go the way together")
    parser.add_argument("--functions", type=int, default=20, help="how many to list, the dearest first")
    options = parser.parse_args()
    for title, model in (("a request to one model", "0"), ("a request to an ensemble of three", _ENSEMBLE)):
        cost = measure(model, options.waiting)
        print(f"{title}: {cost.total()} bytecodes")
        for name, count in cost.most_common(options.functions):
            print(f"{count:8} {name}")


if __name__ == "__main__":
    main()
