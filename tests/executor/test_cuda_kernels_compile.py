"""Kernels in CUDA C++ compile for GPUs that are not here, and take no more of one than they were written for."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from poot_executor.backends.cuda import attend_prompt, nvrtc, packed_dot, packed_product, programs
from poot_executor.backends.cuda.packed_product import Tiling
from poot_executor.backends.triton.kernels.items import Attended
from poot_executor.backends.triton.kernels.products import Around
from poot_executor.backends.triton.packed import LAYOUTS, Segment, empty_segment
from poot_executor.ops import PagedAttention

try:
    nvrtc.version()
except nvrtc.ProgramError as error:
    pytest.skip(f"nothing compiles here: {error}", allow_module_level=True)

triton = pytest.importorskip("triton", reason="its tools say what a kernel takes")
TOOL = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


def segment(name: str, rows: int = 64, width: int = 4096) -> Segment:
    return empty_segment(LAYOUTS[name], 0, rows, width, "cpu")


def around(rows: int, *, gated: bool = False) -> Around:
    return Around(torch.empty(rows, 64, dtype=torch.bfloat16), gate="silu" if gated else None)


def usage(image: bytes, folder: Path) -> tuple[int, int]:
    """Registers and bytes of stack of a thread."""
    path = folder / "kernel.cubin"
    path.write_bytes(image)
    said = subprocess.run([TOOL, "-res-usage", path], capture_output=True, text=True, timeout=60, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found is not None, said
    return int(found[1]), int(found[2])


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (10, 0), (12, 0)])
def test_kernels_of_any_architecture(capability: tuple[int, int]) -> None:
    held, pdl = segment("Q6_K"), capability >= (9, 0)
    how = packed_product.tiling(8, 4096, 4096, held.layout, gated=False, processors=84, shared=101376, wide=False)
    dot = packed_dot.tiling(1, 4096, 4096, held.layout, gated=False)
    wanted = [
        packed_product.program(how, held, around(8), pdl=pdl),
        packed_dot.program(dot, held, around(1), 1, pdl=pdl),
    ]
    assert all(image[:4] == b"\x7fELF" for image in programs.compile_all(wanted, capability))


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K"])
@pytest.mark.parametrize("gated", [False, True])
def test_nothing_spills_in_what_an_h200_takes(name: str, gated: bool, tmp_path: Path) -> None:
    held = segment(name)
    made = {}
    for rows in (8, 32, 64, 128):
        how = packed_product.tiling(
            rows, 14336 if gated else 4096, 4096, held.layout, gated=gated, processors=132, shared=232448, wide=True
        )
        made[rows] = packed_product.program(how, held, around(rows, gated=gated), pdl=True)
    images = programs.compile_all(list(made.values()), (9, 0))
    assert {rows: usage(image, tmp_path)[1] for rows, image in zip(made, images, strict=True)} == dict.fromkeys(made, 0)


@pytest.mark.parametrize(("line_warps", "launched"), [(8, 168), (16, 96)])
def test_a_block_is_launched_with_the_registers_that_its_warps_share_out(
    line_warps: int, launched: int, tmp_path: Path
) -> None:
    """With fewer, those that ask for more would wait for ever: 65536 of a multiprocessor, in eights a thread."""
    how = Tiling(64, line_warps, 1, 1, 128, 2, wide=True)
    made = [
        packed_product.program(replace(how, columns=columns), segment(name), around(columns), pdl=True)
        for name, columns in (("Q4_K", 64), ("Q8_0", 128), ("Q2_K", 64))
    ]
    images = programs.compile_all(made, (9, 0))
    assert {usage(image, tmp_path)[0] for image in images} == {launched}


@pytest.mark.parametrize("width", [64, 128])
def test_attention_of_prompts_has_its_registers_and_spills_none(width: int, tmp_path: Path) -> None:
    q, pool = torch.empty(512, 8, width).bfloat16(), torch.empty(64, 2, width).bfloat16()
    made = []
    for window, softcap, sinks, splits in ((None, None, False, 1), (4096, 30.0, True, 8)):
        op = PagedAttention(0.1, 16, window, softcap=softcap, sinks=sinks, tile=32, splits=splits)
        made.append(attend_prompt.program(Attended(op, q, pool, pool, (), ()), pdl=True))
    assert {usage(image, tmp_path) for image in programs.compile_all(made, (9, 0))} == {(168, 0)}
