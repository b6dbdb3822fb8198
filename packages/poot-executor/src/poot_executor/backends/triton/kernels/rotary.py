"""Rotary embedding: a step's cosines and sines, and the one kernel between the QKV product and attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from poot_executor.backends.triton.kernels.kernel import (
    TRITON_KERNELS,
    TritonKernel,
    begin_kernel,
    dense_form,
    live_index,
    view,
)
from poot_executor.kernels.kernel import Operands, Site, WeightForm
from poot_executor.ops import RotaryKvWrite, RotaryTable

# Heads that one program takes, all of them of queries, of keys or of values.
_TOGETHER = 8


@triton.jit
def _rotary_table(
    positions, frequencies, table, live, magnitude,
    LIVE: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    count = tl.load(live + LIVE)
    at = tl.arange(0, BLOCK)
    mask = at < HALF
    frequency = tl.load(frequencies + at, mask=mask)
    begin_kernel(PDL)
    if row < count:
        angle = tl.load(positions + row).to(tl.float32) * frequency
        tl.store(table + row * 2 * HALF + at, tl.cos(angle) * magnitude, mask=mask)
        tl.store(table + row * 2 * HALF + HALF + at, tl.sin(angle) * magnitude, mask=mask)


@TRITON_KERNELS.register(RotaryTable)
class RotaryTableKernel(TritonKernel):
    """One program a token."""

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        op = site.op
        assert isinstance(op, RotaryTable)
        positions, table, live = view(operands.input(0)), view(operands.outputs[0]), device.live
        frequencies = torch.tensor(op.spec.inverse_frequencies, dtype=torch.float32, device=table.device)
        half, index = len(frequencies), live_index(site.inputs[0])
        block, magnitude = triton.next_power_of_2(half), op.spec.magnitude
        return lambda: _rotary_table[(len(positions),)](
            positions, frequencies, table, live, magnitude, LIVE=index, HALF=half, BLOCK=block, **device.launch
        )


@triton.jit
def _turn(
    source, target, heads, cos, sin, a_weight, b_weight, rest_weight, eps,
    WIDTH: tl.constexpr, HALF: tl.constexpr, STEP: tl.constexpr, APART: tl.constexpr, BLOCK: tl.constexpr,
    TAIL: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Norm, rotate and store a few heads. `source`, `target` and `heads`, which are there, are columns: (heads, 1)."""
    at = tl.arange(0, BLOCK)[None, :]
    mask = (at < HALF) & heads
    a = tl.load(source + at * STEP, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(source + at * STEP + APART, mask=mask, other=0.0).to(tl.float32)
    if TAIL > 0:
        rest = tl.arange(0, TAIL)[None, :] + 2 * HALF
        more = (rest < WIDTH) & heads
        tail = tl.load(source + rest, mask=more, other=0.0).to(tl.float32)
    if NORM:
        squares = tl.sum(a * a + b * b, 1)
        if TAIL > 0:
            squares += tl.sum(tail * tail, 1)
        scale = 1.0 / tl.sqrt(squares / WIDTH + eps)[:, None]
        a, b = a * scale * a_weight[None, :], b * scale * b_weight[None, :]
        if TAIL > 0:
            tail = tail * scale * rest_weight[None, :]
    tl.store(target + at * STEP, a * cos - b * sin, mask=mask)
    tl.store(target + at * STEP + APART, b * cos + a * sin, mask=mask)
    if TAIL > 0:
        tl.store(target + rest, tail, mask=more)


@triton.jit
def _rotary_kv_write(
    q, k, v, table, slots, norms, out, k_pool, v_pool, live, q_pitch, q_head, k_pitch, k_head, v_pitch, v_head,
    eps, offset,
    LIVE: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr,
    STEP: tl.constexpr, APART: tl.constexpr, BLOCK: tl.constexpr, TAIL: tl.constexpr, WIDE: tl.constexpr,
    TOGETHER: tl.constexpr, NORM: tl.constexpr, GREATEST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Groups of TOGETHER heads: first those of queries, then of keys, then of values."""
    QUERY_GROUPS: tl.constexpr = (QUERIES + TOGETHER - 1) // TOGETHER
    KEY_GROUPS: tl.constexpr = (KEYS + TOGETHER - 1) // TOGETHER
    row, group = tl.program_id(0), tl.program_id(1)
    count = tl.load(live + LIVE)
    at = tl.arange(0, BLOCK)
    a_weight, b_weight, rest_weight = at, at, at
    if NORM:
        # The keys' weights lie behind the queries'; values have none, and read the keys' for nothing.
        weight = norms + tl.where(group < QUERY_GROUPS, 0, WIDTH)
        a_weight = tl.load(weight + at * STEP, mask=at < HALF, other=0.0) + offset
        b_weight = tl.load(weight + at * STEP + APART, mask=at < HALF, other=0.0) + offset
        if TAIL > 0:
            rest = tl.arange(0, TAIL) + 2 * HALF
            rest_weight = tl.load(weight + rest, mask=rest < WIDTH, other=0.0) + offset
    begin_kernel(PDL)
    if row < count:
        slot = tl.load(slots + row).to(tl.int64)
        cos = tl.load(table + row * 2 * HALF + at, mask=at < HALF, other=0.0)[None, :]
        sin = tl.load(table + row * 2 * HALF + HALF + at, mask=at < HALF, other=0.0)[None, :]
        head = tl.arange(0, TOGETHER)[:, None]
        if group < QUERY_GROUPS:
            head += group * TOGETHER
            _turn(
                q + row * q_pitch + head * q_head, out + (row * QUERIES + head) * WIDTH, head < QUERIES,
                cos, sin, a_weight, b_weight, rest_weight, eps, WIDTH, HALF, STEP, APART, BLOCK, TAIL, NORM,
            )  # fmt: skip
        elif group < QUERY_GROUPS + KEY_GROUPS:
            head += (group - QUERY_GROUPS) * TOGETHER
            _turn(
                k + row * k_pitch + head * k_head, k_pool + (slot * KEYS + head) * WIDTH, head < KEYS,
                cos, sin, a_weight, b_weight, rest_weight, eps, WIDTH, HALF, STEP, APART, BLOCK, TAIL, NORM,
            )  # fmt: skip
        else:
            head += (group - QUERY_GROUPS - KEY_GROUPS) * TOGETHER
            column = tl.arange(0, WIDE)[None, :]
            mask = (column < WIDTH) & (head < KEYS)
            value = tl.load(v + row * v_pitch + head * v_head + column, mask=mask, other=0.0)
            value = tl.where(tl.abs(value.to(tl.float32)) <= GREATEST, value, GREATEST)
            tl.store(v_pool + (slot * KEYS + head) * WIDTH + column, value, mask=mask)


@TRITON_KERNELS.register(RotaryKvWrite)
class RotaryKvWriteKernel(TritonKernel):
    """A program a token and a few heads. Norm weights and the live count are read before the product is there."""

    def accepts(self, site: Site) -> str | None:
        return None if site.inputs[1].shape == site.inputs[2].shape else "keys and values differ in shape"

    def forms(self, site: Site) -> tuple[WeightForm, ...]:
        op = site.op
        assert isinstance(op, RotaryKvWrite)
        return () if op.eps is None else (dense_form(site, (7, 8)),)

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        op = site.op
        assert isinstance(op, RotaryKvWrite)
        q, k, v, table, slots = (view(operands.input(i)) for i in range(5))
        out, k_pool, v_pool = (view(output) for output in operands.outputs)
        norms = table if op.eps is None else operands.held[0]
        live, index = device.live, live_index(site.inputs[0])
        rows, queries, width = q.shape
        keys, half = k.shape[1], table.shape[1] // 2
        step, apart = (1, half) if op.style == "half" else (2, 1)
        together = min(_TOGETHER, triton.next_power_of_2(queries))
        grid = (rows, triton.cdiv(queries, together) + 2 * triton.cdiv(keys, together))
        block, wide = triton.next_power_of_2(half), triton.next_power_of_2(width)
        tail = triton.next_power_of_2(width - 2 * half) if width > 2 * half else 0
        warps = max(1, min(4, together * block // 128))
        return lambda: _rotary_kv_write[grid](
            q, k, v, table, slots, norms, out, k_pool, v_pool, live,
            q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1), op.eps or 0.0, op.offset,
            LIVE=index, QUERIES=queries, KEYS=keys, WIDTH=width, HALF=half, STEP=step, APART=apart, BLOCK=block,
            TAIL=tail, WIDE=wide, TOGETHER=together, NORM=op.eps is not None, GREATEST=torch.finfo(v_pool.dtype).max,
            num_warps=warps, **device.launch,
        )  # fmt: skip
