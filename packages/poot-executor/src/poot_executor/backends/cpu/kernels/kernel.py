"""The base of CPU kernels, and torch views of their operands.

A launch here is a function of the live counts that returns the call to make each step: all views are made once per
live count, none per step.
"""

from __future__ import annotations

import torch

from poot_executor.backends.cpu.memory import HostAllocation
from poot_executor.devices.protocol import Live
from poot_executor.ir.types import DType
from poot_executor.kernels.kernel import KernelTable, Operand, Site, WeightForm

CPU_KERNELS = KernelTable("cpu")

TORCH_TYPES = {
    DType.F32: torch.float32,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.I32: torch.int32,
    DType.U8: torch.uint8,
}


class CpuKernel:
    """Defaults: accepts every site, no weights, no workspace."""

    name = "torch"

    def accepts(self, site: Site) -> str | None:
        return None

    def forms(self, site: Site) -> tuple[WeightForm, ...]:
        return ()

    def workspace(self, site: Site) -> int:
        return 0


def live_rows(operand: Operand, live: Live) -> int:
    """How many leading rows of the operand count in this step."""
    name = operand.type.live
    return operand.type.shape[0] if name is None else int(getattr(live, name))


def view(operand: Operand, live: Live | None = None) -> torch.Tensor:
    """The operand as a torch view, its leading dimension cut to the live count if `live` is given."""
    shape = operand.type.shape
    if live is not None:
        shape = (live_rows(operand, live), *shape[1:])
    return typed(operand, shape, operand.strides, operand.type.dtype)


def typed(operand: Operand, shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: DType) -> torch.Tensor:
    """A view of this shape and element type from the operand's first byte on (dense unless `strides` are given)."""
    if not isinstance(operand.allocation, HostAllocation):
        raise TypeError("not an operand of the CPU")
    raw = operand.allocation.tensor[operand.offset :]
    if raw.numel() % dtype.size:
        raw = raw[: raw.numel() // dtype.size * dtype.size]
    elements = raw.view(TORCH_TYPES[dtype])
    if strides is None:
        count = 1
        for size in shape:
            count *= size
        return elements[:count].view(shape)
    return elements.as_strided(shape, strides)
