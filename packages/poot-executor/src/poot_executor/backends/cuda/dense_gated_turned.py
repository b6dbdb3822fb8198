"""Gated products with dense weights on Hopper, the matrix unit turned (`source/dense_gated_turned.cu`).

Tiles have as many rows as there are, or an even share of them, up to 352: none is padded, and the more of them a block
has, the less it reads for each. Those of `dense_gated` have 128 rows, so that 200 take as long as 256.

A last turn that not all multiprocessors have is cut smaller: gate and up of an 8B decoder are 1.70 turns of 66
clusters. Shared out by columns instead, with sums that the last to come adds up, it took longer; and so did weights
that were fetched ahead into the cache (3 to 20 %).

Without the gate, the kernel made 6,144 lines of 1,152 and 2,048 rows in 7 to 8 % less time than the library and 4,096
lines of 14,336 columns of 1,152 rows in 5 % less, alone in a row; other sizes in no less, and those of 512 rows and
fewer in up to half as much more. A prompt's products are the library's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import Any

import torch

from poot_executor.backends.cuda.boxes import Boxes
from poot_executor.backends.cuda.programs import Program
from poot_executor.backends.triton.kernels.pointwise import GATES

_UNIT = 32  # lines of gate and up each that a warpgroup multiplies
_UNIT_BYTES = 2 * _UNIT * 128
_STAGED_ROWS = 32
_WHOLE = 4  # units of a cluster's tile
_MOST_ROWS = 352  # of a tile, half of whose sums a thread of 232 registers has
_MORE_TILES = 2  # than would do
# How long tiles take, as was seen on an H200 (gate and up of an 8B decoder, 208 to 2,048 rows): one of the last turn,
# of so many units, as a share of a whole one; how many more rows would take as long as what a tile costs besides; and
# by how much those are slower of which only three stages fit.
_REST = {1: 0.5, 2: 0.5, 3: 0.85}
_FINISH, _FAST_ROWS, _SLOW = 24, 312, 1.04
_THREADS = 384
_CLUSTER = 2
_MOST_STAGES = 8


def _halved(rows: int) -> int:
    """Half of them, as a multiple of eight."""
    return -(-rows // 16) * 8


@dataclass(frozen=True, slots=True)
class TurnedTiling:
    """`tiles` of so many `rows`. Of `lines` a cluster has 128 at a time, of those after them 32 times `rest`."""

    rows: int
    tiles: int
    lines: int
    rest: int

    @property
    def stage(self) -> int:
        """Bytes that are fetched at once, with their barriers."""
        whole = _WHOLE // _CLUSTER * _UNIT_BYTES + self.rows * 128
        return max(whole, self.rest * _UNIT_BYTES + _halved(self.rows) * 128) + 16

    @property
    def staged(self) -> int:
        """Bytes of results on their way out."""
        return 2 * _STAGED_ROWS * (_UNIT + 8) * 2

    def stages(self, shared: int) -> int:
        """As many as fit into so many bytes of shared memory."""
        return min(_MOST_STAGES, (shared - self.staged) // self.stage)


def _tiling(tiles: int, rows: int, n: int, clusters: int) -> tuple[float, TurnedTiling]:
    """So many tiles of rows, with about how long they take."""
    each = max(16, -(-rows // (tiles * 8)) * 8)
    row = (each + _FINISH) * (_SLOW if each > _FAST_ROWS else 1.0)  # a turn
    group, units = _WHOLE * _UNIT, -(-n // _UNIT)
    turns = units * tiles // (_WHOLE * clusters)
    groups = turns * clusters // tiles
    left = units - groups * _WHOLE
    for rest, share in _REST.items():
        if 0 < -(-left // rest) * tiles <= clusters:
            return (turns + share) * row, TurnedTiling(each, tiles, groups * group, rest)
    groups = -(-n // group)
    return -(-groups * tiles // clusters) * row, TurnedTiling(each, tiles, groups * group, 0)


@cache  # a step has as many products as layers, and one size
def turned_tiling(rows: int, n: int, processors: int) -> TurnedTiling:
    """Few tiles of rows, all of one size; as few lines in the last turn as all clusters can share."""
    fewest, clusters = -(-rows // _MOST_ROWS), max(1, processors // _CLUSTER)
    found = (_tiling(tiles, rows, n, clusters) for tiles in range(fewest, fewest + _MORE_TILES + 1))
    return min(found, key=itemgetter(0))[1]


def turned_program(how: TurnedTiling, stages: int, activation: str, live: int, *, pdl: bool) -> Program:
    macros = {
        "GATE": GATES[activation], "ROWS": how.rows, "TILES": how.tiles, "REST": how.rest, "STAGES": stages,
        "LIVE": live, "PDL": pdl,
    }  # fmt: skip
    given = tuple((name, int(value)) for name, value in macros.items())
    return Program("dense_gated_turned.cu", "dense_gated_turned", given, own=True)


def gated_turned(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    activation: str,
    live: int,
    device: Any,
    *,
    how: TurnedTiling | None = None,
) -> Callable[[], object]:
    """The launch of a `dense_gated.GatedProduct`; `tensors` are its x, weight and out."""
    x, weight, out = tensors
    (rows, k), n = x.shape, out.shape[1]
    how = how or turned_tiling(rows, n, device.processors)
    whole = how.lines // (_WHOLE * _UNIT) * how.tiles
    rest = -(-(n - how.lines) // (how.rest * _UNIT)) * how.tiles if how.rest else 0
    grid = max(1, min(device.processors // _CLUSTER, max(whole, rest))) * _CLUSTER
    stages, half = how.stages(device.shared), _halved(how.rows)
    made = turned_program(how, stages, activation, live, pdl=device.pdl)
    boxes = Boxes(x, half), Boxes(x, how.rows - half), Boxes(weight, 2 * _UNIT, halves=True)
    arguments = *boxes, out, device.live, rows, n, k, how.lines
    shared = stages * how.stage + how.staged
    bound: Callable[[], object] = device.bind(made, (grid, 1, 1), _THREADS, shared, arguments, cluster=_CLUSTER)
    return bound
