"""Kernels in CUDA C++ compile for GPUs that are not here, and take no more of one than they were written for."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from poot_executor.backends.cuda import (
    attend_prompt,
    attend_rows,
    dense_gated,
    dense_gated_turned,
    nvrtc,
    packed_dot,
    packed_product,
    programs,
)
from poot_executor.backends.cuda.packed_product import Tiling
from poot_executor.backends.cuda.programs import Program
from poot_executor.backends.triton.kernels.items import Attended
from poot_executor.backends.triton.kernels.plan import queries
from poot_executor.backends.triton.kernels.products import Around
from poot_executor.backends.triton.packed import LAYOUTS, Segment, empty_segment
from poot_executor.ops import PagedAttention

try:
    nvrtc.version()
except nvrtc.ProgramError as error:
    pytest.skip(f"nothing compiles here: {error}", allow_module_level=True)

triton = pytest.importorskip("triton", reason="its tools say what a kernel takes")
TOOL = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
# The sources whose blocks are of two warpgroups that multiply and one that copies.
THREE_GROUPS = ("attend_prompt.cu", "dense_gated.cu", "dense_gated_turned.cu")


def segment(name: str, rows: int = 64, width: int = 4096) -> Segment:
    return empty_segment(LAYOUTS[name], 0, rows, width, "cpu")


def around(rows: int, *, gated: bool = False) -> Around:
    return Around(torch.empty(rows, 64, dtype=torch.bfloat16), gate="silu" if gated else None)


def said(image: bytes, folder: Path, option: str) -> str:
    path = folder / "kernel.cubin"
    path.write_bytes(image)
    return subprocess.run([TOOL, option, path], capture_output=True, text=True, timeout=60, check=True).stdout


def usage(image: bytes, folder: Path) -> tuple[int, int]:
    """Registers and bytes of stack of a thread."""
    text = said(image, folder, "-res-usage")
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    assert found is not None, text
    return int(found[1]), int(found[2])


def waits(image: bytes, folder: Path) -> tuple[int, list[int]]:
    """Asynchronous products in a kernel's code, and how many groups of them each wait leaves under way."""
    code = said(image, folder, "-sass")
    return len(re.findall(r"\bHGMMA\.", code)), [
        int(left, 16) for left in re.findall(r"\bWARPGROUP\.DEPBAR\.LE gsb0, (0x[0-9a-f]+)", code)
    ]


def attentions(width: int) -> list[Program]:
    """The plainest, and one with everything."""
    q, pool = torch.empty(512, 8, width).bfloat16(), torch.empty(64, 2, width).bfloat16()
    made = []
    for window, softcap, sinks, splits in ((None, None, False, 1), (4096, 30.0, True, 8)):
        op = PagedAttention(0.1, 16, window, softcap=softcap, sinks=sinks, tile=32, splits=splits)
        made.append(attend_prompt.program(Attended(op, q, pool, pool, (), ()), pdl=True))
    return made


def attentions_of_rows(heads: int, kv_heads: int, width: int) -> dict[Program, attend_rows.Tiling]:
    """Of all steps that have a tiling of their own: the plainest, and one with everything."""
    made, pool = {}, torch.empty(64, kv_heads, width).bfloat16()
    for tokens in (1, 2, 3, 4, 32, 33, 64):
        q, tile, splits = torch.empty(tokens, heads, width).bfloat16(), queries(tokens, heads // kv_heads), 16
        for op in (
            PagedAttention(0.1, 16, tile=tile),
            PagedAttention(0.1, 16, 4096, softcap=30.0, sinks=True, tile=tile, splits=splits),
        ):
            it = Attended(op, q, pool, pool, (), ())
            how = attend_rows.tiling(it, 232448)
            assert how is not None
            made[attend_rows.program(it, how, pdl=True)] = how
    return made


def gated_products() -> list[Program]:
    return [
        dense_gated.program(dense_gated.Tiling(cluster, lines), activation, 0, pdl=True)
        for cluster, lines in ((1, 128), (2, 128), (1, 112), (2, 96))
        for activation in ("silu", "gelu_tanh")
    ] + [
        dense_gated_turned.turned_program(how, how.stages(227 * 1024), "silu", 0, pdl=True)
        for rows, n in ((40, 96), (200, 14336), (256, 1536), (352, 8192), (512, 14336), (1104, 14336))
        for how in (dense_gated_turned.turned_tiling(rows, n, 132),)
    ]


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
    # NVRTC 13.0 keeps one register of 128 rows in memory.
    most = 0 if nvrtc.version() >= (13, 2) else 8
    assert all(usage(image, tmp_path)[1] <= most for image in images)


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
    assert {usage(image, tmp_path) for image in programs.compile_all(attentions(width), (9, 0))} == {(168, 0)}


@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(32, 8, 128), (9, 3, 64)])
def test_attention_of_rows_spills_none_and_as_many_blocks_run_as_it_is_tiled_for(
    heads: int, kv_heads: int, width: int, tmp_path: Path
) -> None:
    """A multiprocessor has 65,536 registers, and gives a warp those of its threads in eights."""
    made = attentions_of_rows(heads, kv_heads, width)
    for (program, how), image in zip(made.items(), programs.compile_all(list(made), (9, 0)), strict=True):
        registers, stack = usage(image, tmp_path)
        threads = 32 * (how.heads * how.ways + 1)
        assert stack == 0, program
        assert how.blocks * threads * -(-registers // 8) * 8 <= 65536, program


def test_gated_products_have_their_registers_and_spill_none(tmp_path: Path) -> None:
    assert {usage(image, tmp_path) for image in programs.compile_all(gated_products(), (9, 0))} == {(168, 0)}


@pytest.mark.parametrize("source", THREE_GROUPS)
def test_what_copiers_leave_is_enough_for_those_that_multiply(source: str) -> None:
    """Else these would wait for registers for ever. Counts are those that setmaxnreg takes (PTX ISA)."""
    found = re.search(r"COPIER_REGISTERS = (\d+), REGISTERS = (\d+);", (programs.SOURCES / source).read_text("utf-8"))
    assert found is not None
    copiers, others = map(int, found.groups())
    assert 128 * copiers + 256 * others <= 384 * 168
    assert all(count % 8 == 0 and 24 <= count <= 256 for count in (copiers, others))


def test_products_are_not_made_one_by_one(tmp_path: Path) -> None:
    """Where the assembler does not see that registers of products are left alone, it waits after each of them."""
    made = [*attentions(64), *attentions(128), *gated_products()]
    for program, image in zip(made, programs.compile_all(made, (9, 0)), strict=True):
        products, left = waits(image, tmp_path)
        assert 0 < len(left) < products, program


@pytest.mark.parametrize(("name", "columns"), [("Q4_K", 64), ("Q6_K", 64), ("Q8_0", 128)])
def test_products_with_packed_weights_wait_for_the_one_before(name: str, columns: int, tmp_path: Path) -> None:
    """Registers of one are decoded while another is made. The assembler's own waits would leave none under way."""
    how = Tiling(columns, 8, 1, 1, 128, 2, wide=True)
    made = packed_product.program(how, segment(name), around(columns), pdl=True)
    products, left = waits(programs.cubin(made, (9, 0)), tmp_path)
    assert products
    assert left.count(1) >= products
    assert left.count(0) < products
