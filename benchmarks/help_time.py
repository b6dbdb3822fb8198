"""How long `poot-serve --help` takes, beside an interpreter that does nothing.

    python benchmarks/help_time.py           print the table
    python benchmarks/help_time.py --check   also print PASS or FAIL, and exit 1 on FAIL

A command line that answers at once has not imported torch: the limit is 0.5 s.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

LIMIT_S = 0.5
RUNS = 7


def seconds(command: list[str]) -> float:
    """The median wall time of `command` over RUNS runs, after one that warms the file cache."""
    times = []
    for _ in range(RUNS + 1):
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail when --help takes longer than the limit")
    arguments = parser.parse_args()
    poot_serve = shutil.which("poot-serve", path=str(Path(sys.executable).parent))
    if poot_serve is None:
        parser.error("no poot-serve beside this interpreter; run: python3 dev.py bench help_time")
    floor = seconds([sys.executable, "-c", ""])
    taken = seconds([poot_serve, "--help"])
    print("command             seconds  ratio")
    print(f"python -c ''        {floor:7.3f}   1.00")
    print(f"poot-serve --help   {taken:7.3f}  {taken / floor:5.2f}")
    if not arguments.check:
        return 0
    passed = taken < LIMIT_S
    print(f"{'PASS' if passed else 'FAIL'}: poot-serve --help takes {taken:.3f} s, under {LIMIT_S} s wanted")
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
