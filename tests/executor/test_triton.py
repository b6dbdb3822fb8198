"""Triton kernels without a GPU: run by the interpreter, and compiled for devices, each in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from poot_executor.ops import GatedLinear, Linear, PagedAttention
from poot_executor.testing import cases

PACKED = re.compile(r"Linear.* Q\d_")

pytest.importorskip("triton", reason="torch brings triton on Linux only")


def said(script: str, **environment: str) -> list[str]:
    """Lines that a script of this folder prints."""
    command = [sys.executable, str(Path(__file__).with_name(script))]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", **environment}
    run = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment, check=True)
    return run.stdout.splitlines()


def interpreted(script: str) -> list[str]:
    return said(script, TRITON_INTERPRET="1")


def test_interpreted_kernels_agree_with_the_references() -> None:
    lines = interpreted("triton_conformance.py")
    assert [line for line in lines if not line.startswith("PASS")] == []
    ran = [line.split(" | ")[1] for line in lines]
    assert ran.count("the device's kernels") == len(cases())
    assert ran.count("kernels that run anywhere") == sum(
        case.op in {Linear, GatedLinear, PagedAttention} and not PACKED.search(case.id) for case in cases()
    )
    assert ran.count("activations in half precision") == sum(bool(PACKED.search(case.id)) for case in cases())


@pytest.mark.parametrize(
    "script",
    ["triton_sampling.py", "triton_decoder.py", "triton_products.py", "triton_quantised.py", "triton_attention.py"],
)
def test_interpreted_checks(script: str) -> None:
    """Sampling on rows of several chunks, steps of a decoder, products of few rows and of packed weights, attention."""
    lines = interpreted(script)
    assert lines and [line for line in lines if not line.startswith("PASS")] == []


def test_kernels_compile_for_devices_that_are_not_here(tmp_path: Path) -> None:
    lines = said("triton_compile.py", TRITON_CACHE_DIR=str(tmp_path))
    assert lines and [line for line in lines if not line.startswith("PASS")] == []
