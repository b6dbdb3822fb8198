"""Triton kernels without a GPU: every conformance case under the interpreter, in a process that has it switched on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from poot_executor.testing import cases

pytest.importorskip("triton", reason="torch brings triton on Linux only")


def interpreted(script: str) -> list[str]:
    """Lines that a script of this folder prints under the interpreter."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(Path(__file__).with_name(script))]
    run = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment, check=True)
    return run.stdout.splitlines()


def test_interpreted_kernels_agree_with_the_references() -> None:
    lines = interpreted("triton_conformance.py")
    assert [line for line in lines if not line.startswith("PASS")] == []
    assert len(lines) == len(cases())


def test_interpreted_sampling_on_rows_of_several_chunks() -> None:
    lines = interpreted("triton_sampling.py")
    assert lines and [line for line in lines if not line.startswith("PASS")] == []


def test_interpreted_steps_of_a_decoder() -> None:
    lines = interpreted("triton_decoder.py")
    assert lines and [line for line in lines if not line.startswith("PASS")] == []
