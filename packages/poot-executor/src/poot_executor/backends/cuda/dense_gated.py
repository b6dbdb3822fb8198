"""Gated products of many rows with dense weights on Hopper, by a kernel in CUDA C++ (`source/dense_gated.cu`).

The library has as fast a product, but leaves the activation to a kernel of its own, which reads and writes the results
again. Of the other products of a decoder the library's were the faster (H200, 2,048 and 8,192 tokens of an 8B decoder),
with the residual's addition and the norms in this kernel too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from poot_executor.backends.cuda.boxes import COLUMNS, Boxes
from poot_executor.backends.cuda.dense_gated_turned import gated_turned, turned_program, turned_tiling
from poot_executor.backends.cuda.dense_product import fill_with_noise
from poot_executor.backends.cuda.driver import UNAVAILABLE
from poot_executor.backends.cuda.programs import Program
from poot_executor.backends.triton.kernels.gated import GatedLinearKernel
from poot_executor.backends.triton.kernels.kernel import PACKED, UNBOUNDED, is_packed, live_index, place, view
from poot_executor.backends.triton.kernels.pointwise import GATES
from poot_executor.backends.triton.kernels.products import MOST_ROWS
from poot_executor.ir.types import DType
from poot_executor.kernels.kernel import KernelTable, Operands, Site
from poot_executor.ops import GatedLinear

_log = logging.getLogger(__name__)

# For Hopper, to be preferred to all others.
DENSE_KERNELS = KernelTable("ptx")

_TURNED_NAME = "gated product, turned"
_TILE = 128  # rows of x
_LINES = 128, 112, 96  # of gate and up each in a tile
_FINISH = 4  # lines whose products take as long as writing a tile's results does, about
_THREADS = 384
_STAGES = 4
_BAND_ROWS = 2048  # whose columns stay in the cache while weights go by
_ALIGNMENT = 8  # columns and results that are read or written at once


@dataclass(frozen=True, slots=True)
class Tiling:
    """`cluster` blocks share gate and up; a tile has so many `lines` of each, a band so many rows of x."""

    cluster: int
    lines: int = _LINES[0]
    band_rows: int = _BAND_ROWS

    @property
    def shared(self) -> int:
        return _STAGES * ((_TILE + 2 * self.lines) * 128 + 16) + _TILE * (self.lines + 8) * 2


def tiles(rows: int, n: int, how: Tiling) -> int:
    """Of all clusters together."""
    return -(-rows // (_TILE * how.cluster)) * -(-n // how.lines)


def tiling(rows: int, n: int, processors: int) -> Tiling:
    """Clusters read less; they have two tiles of rows each. Lines are so many that the last turn is full as well:
    gate and up of an 8B decoder, of 256 rows on 132 multiprocessors, are 1.94 turns of 112 lines, or 1.70 of 128."""
    cluster = 2 if -(-rows // _TILE) % 2 == 0 else 1

    def cost(how: Tiling) -> int:
        turns = -(-tiles(rows, n, how) // max(1, processors // cluster))
        return turns * (how.lines + _FINISH)

    return min((Tiling(cluster, lines) for lines in _LINES), key=cost)


def program(how: Tiling, activation: str, live: int, *, pdl: bool) -> Program:
    macros = {
        "GATE": GATES[activation], "LINES": how.lines, "CLUSTER": how.cluster, "STAGES": _STAGES,
        "BAND": max(1, how.band_rows // (_TILE * how.cluster)), "LIVE": live, "PDL": pdl,
    }  # fmt: skip
    given = tuple((name, int(value)) for name, value in macros.items())
    return Program("dense_gated.cu", "dense_gated", given, own=True)


@dataclass(frozen=True, slots=True)
class GatedProduct:
    """act(x gate^T) * (x up^T), x (rows, k), `weight` gate and up (2 n, k), out (rows, n), all bfloat16.

    n and k are multiples of 8, k is 64 or more.
    """

    x: torch.Tensor
    weight: torch.Tensor
    out: torch.Tensor
    activation: str

    def bind(self, live: int, device: Any, *, how: Tiling | None = None) -> Callable[[], object]:
        """The launch. `live`: which of the live counts bounds rows."""
        (rows, k), n = self.x.shape, self.out.shape[1]
        how = how or tiling(rows, n, device.processors)
        grid = max(1, min(device.processors // how.cluster, tiles(rows, n, how))) * how.cluster
        made = program(how, self.activation, live, pdl=device.pdl)
        arguments = Boxes(self.x, _TILE), Boxes(self.weight, how.lines), self.out, device.live, rows, n, k
        bound: Callable[[], object] = device.bind(
            made, (grid, 1, 1), _THREADS, how.shared, arguments, cluster=how.cluster
        )
        return bound


@cache
def _warn(message: str) -> None:
    """Once, and not for each layer."""
    _log.warning("no gated product in CUDA C++, the library's way is slower: %s", message)


@DENSE_KERNELS.register(GatedLinear)
class DenseGatedKernel(GatedLinearKernel):
    """The device tells whether this or the library's product, and the activation after it, is the faster way."""

    name = "gated product"

    def accepts(self, site: Site) -> str | None:
        if is_packed(site):
            return PACKED
        x, out = site.inputs[0], site.outputs[0]
        if len(x.shape) != 2 or x.shape[0] <= MOST_ROWS:
            return f"{MOST_ROWS} rows or fewer"
        if x.dtype is not DType.BF16:
            return "not bfloat16"
        if x.shape[1] % _ALIGNMENT or out.shape[1] % _ALIGNMENT:
            return f"rows are not multiples of {_ALIGNMENT}"
        return None if x.shape[1] >= COLUMNS else f"fewer than {COLUMNS} columns"

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        ways = {self.name: self.own, GatedLinearKernel.name: super().call, _TURNED_NAME: self.turned}
        rows, n, live = site.inputs[0].shape[0], site.outputs[0].shape[1], device.live
        how = tiling(rows, n, device.processors), turned_tiling(rows, n, device.processors)
        device.live = torch.full_like(live, UNBOUNDED)  # while they are timed

        def bind_over_noise(way: Callable[..., Callable[[], object]]) -> Callable[[], object]:
            # No step runs yet, and each writes x before it reads it. Weights may be on their way, and are let come.
            with device.beside():
                fill_with_noise(view(operands.input(0)))
            return way(site, operands, device)

        try:
            bind = {name: partial(bind_over_noise, way) for name, way in ways.items()}
            fastest = device.fastest((*place(site, operands), *how), bind)
        except UNAVAILABLE as error:
            _warn(str(error))
            fastest = GatedLinearKernel.name
        finally:
            device.live = live
        return ways[fastest](site, operands, device)

    def programs(self, site: Site, device: Any) -> tuple[Program, ...]:
        """Those of its own that are timed at a site."""
        op, (rows, n), live = site.op, site.outputs[0].shape, live_index(site.inputs[0])
        assert isinstance(op, GatedLinear)
        how = turned_tiling(rows, n, device.processors)
        return (
            program(tiling(rows, n, device.processors), op.activation, live, pdl=device.pdl),
            turned_program(how, how.stages(device.shared), op.activation, live, pdl=device.pdl),
        )

    def own(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        return _product(site, operands).bind(live_index(site.inputs[0]), device)

    def turned(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        it = _product(site, operands)
        return gated_turned((it.x, it.weight, it.out), it.activation, live_index(site.inputs[0]), device)


def _product(site: Site, operands: Operands) -> GatedProduct:
    assert isinstance(site.op, GatedLinear)
    return GatedProduct(view(operands.input(0)), operands.held[0], view(operands.outputs[0]), site.op.activation)
