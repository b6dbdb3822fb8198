"""Passes: functions from graph to graph. `PASSES` is their order."""

from collections.abc import Callable

from poot_executor.ir.graph import Graph
from poot_executor.passes.fuse import fuse_add_norm, fuse_linears

PASSES: tuple[Callable[[Graph], Graph], ...] = (fuse_linears, fuse_add_norm)

__all__ = ["PASSES", "fuse_add_norm", "fuse_linears"]
