"""How products of a few rows are cut into programs: within the device, whatever its size."""

from __future__ import annotations

from itertools import product

import pytest

pytest.importorskip("triton", reason="torch brings triton on Linux only")

from poot_executor.backends.triton.kernels.attention import stages_within
from poot_executor.backends.triton.kernels.plan import queries
from poot_executor.backends.triton.kernels.products import MOST_ROWS, Tiling, block_rows, tiling, workspace_bytes

KIB = 1024
# Shared memory that a program may have on devices: of 99 KiB are the small ones.
SHARED = (64 * KIB, 99 * KIB, 163 * KIB, 227 * KIB)
PROCESSORS = (1, 16, 60, 108, 132, 170, 1000)
ROWS = (1, 2, 16, 17, MOST_ROWS)
SIZES = ((64, 64), (72, 520), (576, 1536), (1024, 4096), (4096, 14336), (6144, 4096), (14336, 4096), (128256, 4096))


def tiles(n: int, how: Tiling) -> int:
    return -(-n // how.bn)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("shared", SHARED)
def test_a_program_has_room_for_what_is_under_way(gated: bool, shared: int) -> None:
    for rows, (n, k), processors in product(ROWS, SIZES, PROCESSORS):
        how = tiling(rows, n, k, gated=gated, size=2, processors=processors, shared=shared)
        stage = 2 * how.bk * (how.bn * (2 if gated else 1) + block_rows(rows))
        assert how.stages >= 1
        assert how.stages * stage <= shared, (rows, n, k, processors)


def test_a_small_device_has_a_stage_of_the_widest_elements() -> None:
    """64 rows, gated, in float32: a stage of 96 KiB, which 64 KiB have not, so one at least is asked for."""
    how = [tiling(64, 4096, 4096, gated=True, size=4, processors=60, shared=shared).stages for shared in SHARED]
    assert how == [1, 1, 1, 2]


@pytest.mark.parametrize("processors", PROCESSORS)
def test_parts_are_no_more_than_fill_the_device(processors: int) -> None:
    for rows, (n, k) in product(ROWS, SIZES):
        how = tiling(rows, n, k, gated=False, size=2, processors=processors, shared=SHARED[-1])
        assert how.split == 1 or how.split * tiles(n, how) <= processors, (rows, n, k)
        assert how.split * how.bk <= max(k, how.bk), "a part without columns"
        # Float32 results of each part have their place in what the kernel asked for.
        assert how.split == 1 or 4 * how.split * rows * n <= workspace_bytes(rows, n)
        gated = tiling(rows, n, k, gated=True, size=2, processors=processors, shared=SHARED[-1])
        assert gated.split == 1


# On a device of 132: few tiles of long rows are cut, whatever fills the device or has short rows is not.
@pytest.mark.parametrize(
    ("rows", "n", "k", "split"),
    [(1, 4096, 14336, 2), (16, 1024, 4096, 4), (16, 6144, 4096, 1), (16, 14336, 4096, 1), (4, 1024, 256, 1)],
)
def test_few_tiles_of_long_rows_are_cut(rows: int, n: int, k: int, split: int) -> None:
    assert tiling(rows, n, k, gated=False, size=2, processors=132, shared=SHARED[-1]).split == split


@pytest.mark.parametrize(
    ("shared", "keys", "wide", "stages"),
    [
        (227 * KIB, 128, 128, 4),
        (163 * KIB, 128, 128, 3),
        (99 * KIB, 128, 128, 2),
        (64 * KIB, 128, 128, 1),
        (99 * KIB, 32, 256, 2),
        (16 * KIB, 128, 128, 1),
    ],
)
def test_attention_has_as_many_blocks_under_way_as_fit(shared: int, keys: int, wide: int, stages: int) -> None:
    """What Triton allocates: 64 KiB a block of 128 keys and values, but for one, and 33 KiB beside them."""
    assert stages_within(shared, keys, wide, 64, 2) == stages


def test_items_of_prompts_fill_a_matrix_of_128_and_those_of_decoding_rows_the_smallest() -> None:
    assert [queries(tokens, 4) for tokens in (1, 256, 257, 2048)] == [4, 4, 32, 32]
    assert [queries(2048, share) for share in (1, 3, 8, 128, 200)] == [128, 42, 16, 1, 1]
