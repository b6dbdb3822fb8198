"""Gated products of some hundred rows with dense weights on Hopper (`source/dense_gated_few.cu`): no row is padded.

The tiles of `dense_gated` have 128 rows, so that 200 take as long as 256.

A last turn that not all multiprocessors have is left so (gate and up of an 8B decoder are 1.70 turns of 66 clusters):
those tiles shared out by columns, and their sums added by the last to come, took 2 to 9 % longer of 64 to 256 rows, and
2 % less of 320 (H200), where the power that idle multiprocessors leave makes the others faster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from poot_executor.backends.cuda.boxes import Boxes
from poot_executor.backends.cuda.programs import Program
from poot_executor.backends.triton.kernels.pointwise import GATES

MOST_ROWS = 512
_LINES = 64  # of gate and up each in a tile
_ALIGNMENT = 16  # rows of a tile are a multiple of it
_MOST_COLUMNS = 256  # of the matrix unit: rows of a tile
_THREADS = 384
_CLUSTER = 2
_MOST_STAGES = 8


@dataclass(frozen=True, slots=True)
class FewTiling:
    """`tiles` of so many `rows`; `cluster` blocks share x."""

    rows: int
    tiles: int
    cluster: int = _CLUSTER

    @property
    def stage(self) -> int:
        """Bytes that are fetched at once, with their barriers."""
        return (2 * _LINES + self.rows) * 128 + 16

    @property
    def staged(self) -> int:
        """Bytes of results on their way out."""
        return self.rows // 2 * (_LINES // 2 + 8) * 2 * 2

    def stages(self, shared: int) -> int:
        """As many as fit into so many bytes of shared memory."""
        return min(_MOST_STAGES, (shared - self.staged) // self.stage)


def few_tiling(rows: int) -> FewTiling:
    """As few tiles as there can be, all of one size."""
    tiles = -(-rows // _MOST_COLUMNS)
    return FewTiling(-(-rows // (tiles * _ALIGNMENT)) * _ALIGNMENT, tiles)


def few_program(how: FewTiling, stages: int, activation: str, live: int, *, pdl: bool) -> Program:
    macros = {
        "GATE": GATES[activation], "ROWS": how.rows, "TILES": how.tiles, "CLUSTER": how.cluster, "STAGES": stages,
        "LIVE": live, "PDL": pdl,
    }  # fmt: skip
    given = tuple((name, int(value)) for name, value in macros.items())
    return Program("dense_gated_few.cu", "dense_gated_few", given, own=True)


def gated_few(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    activation: str,
    live: int,
    device: Any,
    *,
    how: FewTiling | None = None,
) -> Callable[[], object]:
    """The launch of a `dense_gated.GatedProduct` of at most MOST_ROWS rows; `tensors` are its x, weight and out."""
    x, weight, out = tensors
    (rows, k), n = x.shape, out.shape[1]
    how = how or few_tiling(rows)
    tiles = -(-n // (_LINES * how.cluster)) * how.tiles
    grid = max(1, min(device.processors // how.cluster, tiles)) * how.cluster
    stages = how.stages(device.shared)
    made = few_program(how, stages, activation, live, pdl=device.pdl)
    arguments = Boxes(x, how.rows // how.cluster), Boxes(weight, 2 * _LINES, halves=True), out, device.live, rows, n, k
    shared = stages * how.stage + how.staged
    bound: Callable[[], object] = device.bind(made, (grid, 1, 1), _THREADS, shared, arguments, cluster=how.cluster)
    return bound
