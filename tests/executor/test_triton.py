"""Triton kernels without a GPU: every conformance case under the interpreter, in a process that has it switched on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from poot_executor.testing import cases

pytest.importorskip("triton", reason="torch brings triton on Linux only")


def test_interpreted_kernels_agree_with_the_references() -> None:
    script = Path(__file__).with_name("triton_conformance.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"}
    run = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=280, env=environment, check=True
    )
    lines = run.stdout.splitlines()
    assert [line for line in lines if not line.startswith("PASS")] == []
    assert len(lines) == len(cases())
