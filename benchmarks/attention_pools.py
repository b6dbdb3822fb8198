"""Keys and values as an engine holds them, and the sites of attention over them: of an 8B decoder's heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from poot_executor.backends.triton.kernels.kernel import LIVE_INDEX, TORCH_TYPES
from poot_executor.backends.triton.memory import TorchAllocation
from poot_executor.ir.graph import Op
from poot_executor.ir.types import DType, TensorType
from poot_executor.kernels import Operands, Site
from poot_executor.kernels.kernel import Operand
from poot_executor.ops import AttentionPlan, PagedAttention

HEADS, KV_HEADS, BLOCK = 32, 8, 16
DTYPES = {torch_type: dtype for dtype, torch_type in TORCH_TYPES.items()}

# row of the table, first position, tokens
Run = tuple[int, int, int]


def operand(tensor: torch.Tensor) -> Operand:
    type_ = TensorType(tuple(tensor.shape), DTYPES[tensor.dtype])
    return Operand(type_, TorchAllocation(tensor.view(-1).view(torch.uint8)), 0, tensor.stride())


def place(op: Op, inputs: Sequence[torch.Tensor], out: torch.Tensor, scratch: int = 0) -> tuple[Site, Operands]:
    """A node whose inputs are no weights, with so many bytes of scratch."""
    given, made = [operand(tensor) for tensor in inputs], operand(out)
    none = (None,) * len(given)
    site = Site(op, tuple(it.type for it in given), (made.type,), none, none, DType.BF16)
    workspace = operand(torch.empty(scratch, dtype=torch.uint8, device="cuda")) if scratch else None
    return site, Operands(tuple(given), (made,), (), workspace)


def launch(site: Site, operands: Operands, device: Any) -> Callable[[], object]:
    """By the first of the device's kernels that takes it, as an entry has it."""
    kernel = next(kernel for kernel in device.kernels.of(type(site.op)) if kernel.accepts(site) is None)
    return kernel.call(site, operands, device)  # type: ignore[no-any-return]


class Pool:
    """Keys and values of rows of some length, in blocks that lie anywhere."""

    def __init__(self, rows: int, length: int, width: int) -> None:
        blocks = -(-length // BLOCK)
        self.width, self.table = width, torch.randperm(rows * blocks).int().view(rows, blocks)
        self._table = self.table.cuda()
        shape = rows * blocks * BLOCK, KV_HEADS, width
        self.k, self.v = (torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_() for _ in range(2))

    def attention(self, op: PagedAttention, q: torch.Tensor, plan: torch.Tensor) -> tuple[Site, Operands, torch.Tensor]:
        """Of queries (tokens, heads, width): the node, and where its results will be."""
        out = torch.full_like(q, torch.nan)
        scratch = 4 * q.numel() // self.width * op.splits * (self.width + 2) if op.splits > 1 else 0
        return *place(op, (q, self.k, self.v, plan, self._table), out, scratch), out

    def plan(self, op: AttentionPlan, runs: Sequence[Run], device: Any) -> torch.Tensor:
        """As the device writes it for a step of these runs."""
        resolved = torch.tensor([(*run, 0) for run in runs], dtype=torch.int32).cuda()
        made = torch.zeros(1 + op.items(len(runs)), 8, dtype=torch.int32, device="cuda")
        device.live[LIVE_INDEX["runs"]] = len(runs)
        launch(*place(op, (resolved,), made), device)()
        return made

    def row(self, index: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a row as (1, heads, length, width), in one piece, once for each head of queries."""
        at = torch.arange(length)
        slots = (self.table[index].long()[at // BLOCK] * BLOCK + at % BLOCK).cuda()
        share = HEADS // KV_HEADS
        k, v = (pool[slots].transpose(0, 1).repeat_interleave(share, 0)[None] for pool in (self.k, self.v))
        return k, v
