"""Storing keys and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

from poot_executor.backends.triton.kernels.kernel import TRITON_KERNELS, TritonKernel, begin_kernel, live_index, view
from poot_executor.kernels.kernel import Operands, Site
from poot_executor.ops import KvWrite


@triton.jit
def _kv_write(
    k,
    v,
    slots,
    k_pool,
    v_pool,
    live,
    k_pitch,
    v_pitch,
    width,
    LIVE: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    begin_kernel(PDL)
    row = tl.program_id(0)
    if row < tl.load(live + LIVE):
        slot = tl.load(slots + row).to(tl.int64)
        at = tl.arange(0, BLOCK)
        mask = at < width
        tl.store(k_pool + slot * width + at, tl.load(k + row * k_pitch + at, mask=mask), mask=mask)
        tl.store(v_pool + slot * width + at, tl.load(v + row * v_pitch + at, mask=mask), mask=mask)


@TRITON_KERNELS.register(KvWrite)
class KvWriteKernel(TritonKernel):
    def accepts(self, site: Site) -> str | None:
        return None if site.inputs[0].shape == site.inputs[1].shape else "keys and values differ in shape"

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        k, v, slots = (view(operands.input(i)) for i in range(3))
        k_pool, v_pool = (view(output) for output in operands.outputs)
        width, live, index = k.shape[1] * k.shape[2], device.live, live_index(site.inputs[0])
        block = triton.next_power_of_2(width)
        return lambda: _kv_write[(len(slots),)](
            k,
            v,
            slots,
            k_pool,
            v_pool,
            live,
            k.stride(0),
            v.stride(0),
            width,
            LIVE=index,
            BLOCK=block,
            **device.launch,
        )
