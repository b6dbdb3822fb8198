"""The list of ops."""

from __future__ import annotations

from poot_executor.ir.graph import Op
from poot_executor.ops import attention, deferred, gather, linear, norm, pointwise, residual, rotary, rows, sampling


def all_ops() -> tuple[type[Op], ...]:
    """Every op that launches a kernel, by name."""
    found = {
        value
        for module in (attention, deferred, gather, linear, norm, pointwise, residual, rotary, rows, sampling)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Op) and value is not Op and not value.views
    }
    return tuple(sorted(found, key=lambda op: op.__name__))
