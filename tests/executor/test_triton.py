"""Triton kernels without a GPU: run by the interpreter, and compiled for devices, each in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from poot_executor.ops import GatedLinear, Linear, PagedAttention
from poot_executor.testing import cases

PACKED = re.compile(r"Linear.* Q\d_")

Lines = Callable[[str], list[str]]

_SECONDS = 600
# A test may wait for those of others.
pytestmark = pytest.mark.timeout(2 * _SECONDS)

pytest.importorskip("triton", reason="torch brings triton on Linux only")


# What each process runs. Those that take the longest come first.
COMPILED = ("triton_compile.py 1/2", "triton_compile.py 2/2")
INTERPRETED = (
    ("triton_attention.py", "triton_sampling.py"),
    ("triton_conformance.py", "triton_quantised.py", "triton_decoder.py", "triton_products.py"),
)


def said(arguments: list[str], environment: dict[str, str]) -> list[str]:
    """Lines that a script of this folder prints."""
    command = [sys.executable, str(Path(__file__).with_name(arguments[0])), *arguments[1:]]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1", **environment}
    run = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, env=environment, check=True)
    return run.stdout.splitlines()


def of_script(script: str, lines: list[str]) -> list[str]:
    """The lines behind that of the script's name, up to the next one's."""
    rest = lines[lines.index(script) + 1 :]
    return rest[: next((at for at, line in enumerate(rest) if line.endswith(".py")), None)]


@pytest.fixture(scope="module")
def lines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lines]:
    """The lines of a script. All that tests ask for run at once, on a core each: they take minutes of one."""
    of_tests = (item.callspec.params for item in request.session.items if hasattr(item, "callspec"))
    wanted = {params.get("script") for params in of_tests}
    cache = {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        running = {script: pool.submit(said, script.split(), cache) for script in COMPILED if script in wanted}
        for group in INTERPRETED:
            if scripts := [script for script in group if script in wanted]:
                arguments = ["triton_interpreted.py", *scripts]
                running |= dict.fromkeys(scripts, pool.submit(said, arguments, cache | {"TRITON_INTERPRET": "1"}))

        def of(script: str) -> list[str]:
            found = running[script].result()
            return found if script in COMPILED else of_script(script, found)

        yield of
        for each in running.values():
            each.cancel()


@pytest.mark.parametrize("script", COMPILED)
def test_kernels_compile_for_devices_that_are_not_here(script: str, lines: Lines) -> None:
    found = lines(script)
    assert found and [line for line in found if not line.startswith("PASS")] == []


@pytest.mark.parametrize("script", ["triton_conformance.py"])
def test_interpreted_kernels_agree_with_the_references(script: str, lines: Lines) -> None:
    found = lines(script)
    assert [line for line in found if not line.startswith("PASS")] == []
    ran = [line.split(" | ")[1] for line in found]
    assert ran.count("the device's kernels") == len(cases())
    assert ran.count("kernels that run anywhere") == sum(
        case.op in {Linear, GatedLinear, PagedAttention} and not PACKED.search(case.id) for case in cases()
    )
    assert ran.count("activations in half precision") == sum(bool(PACKED.search(case.id)) for case in cases())


@pytest.mark.parametrize(
    "script",
    ["triton_attention.py", "triton_sampling.py", "triton_quantised.py", "triton_decoder.py", "triton_products.py"],
)
def test_interpreted_checks(script: str, lines: Lines) -> None:
    """Sampling on rows of several chunks, steps of a decoder, products of few rows and of packed weights, attention."""
    found = lines(script)
    assert found and [line for line in found if not line.startswith("PASS")] == []
