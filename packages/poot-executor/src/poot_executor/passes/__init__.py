"""Passes: functions from graph to graph. `PASSES` is their order, after `narrow`, which asks the device."""

from poot_executor.ops.deferred import NormedGatedLinear, NormedLinear, ResidualLinear
from poot_executor.ops.linear import GatedLinear
from poot_executor.ops.residual import LinearAddRmsNorm
from poot_executor.passes.defer import defer_norms
from poot_executor.passes.fuse import fuse_add_norm, fuse_gated, fuse_linears
from poot_executor.passes.narrow import narrow
from poot_executor.passes.residual import fuse_product_norm
from poot_executor.passes.rewrite import Pass

PASSES = (
    Pass(fuse_linears),
    Pass(fuse_gated, (GatedLinear,)),
    Pass(fuse_add_norm),
    Pass(defer_norms, (ResidualLinear, NormedLinear, NormedGatedLinear)),
    Pass(fuse_product_norm, (LinearAddRmsNorm,)),
)

__all__ = [
    "PASSES",
    "Pass",
    "defer_norms",
    "fuse_add_norm",
    "fuse_gated",
    "fuse_linears",
    "fuse_product_norm",
    "narrow",
]
