"""The engine's worker with faults armed: `faulty_worker.py FAULT[,FAULT...] ARGUMENTS...`.

A FAULT is POINT:VISIT:WHAT, where WHAT is "fail" (the point fails or refuses, as `poot_batch.faults` says) or the
number of a signal that the process sends itself there.
"""

from __future__ import annotations

import os
import sys

from poot_batch.faults import CountedFaults, armed
from poot_batch.process.worker import main


class Faults(CountedFaults):
    """`signals` are numbers by point and visit."""

    def __init__(self, failing: dict[str, list[int]], signals: dict[tuple[str, int], int]) -> None:
        super().__init__(failing)
        self._signals = signals

    def reach(self, point: str) -> bool:
        number = self._signals.get((point, self.reached[point] + 1))
        if number is not None:
            os.kill(os.getpid(), number)
        return super().reach(point)


def parse(text: str) -> Faults:
    failing: dict[str, list[int]] = {}
    signals: dict[tuple[str, int], int] = {}
    for fault in text.split(","):
        point, visit, what = fault.split(":")
        if what == "fail":
            failing.setdefault(point, []).append(int(visit))
        else:
            signals[point, int(visit)] = int(what)
    return Faults(failing, signals)


if __name__ == "__main__":
    with armed(parse(sys.argv[1])):
        code = main(sys.argv[2:])
    sys.stderr.flush()
    os._exit(code)
