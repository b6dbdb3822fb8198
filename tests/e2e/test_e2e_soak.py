"""benchmarks/soak.py: 200 requests, a fifth of them cancelled at random, leave nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"


def test_cancelled_requests_leave_nothing_behind():
    command = [
        sys.executable,
        str(SOAK),
        "--check",
        "--backend",
        "cpu",
        "--requests",
        "200",
        "--cancel",
        "0.2",
        "--seed",
        "5",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("PASS: ") == 6 and "FAIL" not in ended.stdout
