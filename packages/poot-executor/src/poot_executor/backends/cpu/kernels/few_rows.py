"""Kernels for steps of few tokens, in C: through torch their calls would cost more than their work.

Each is its torch kernel with another launch for few rows (rotation, which reads all but once, for any number); it
refuses where there is no library.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from poot_executor.backends.cpu.kernels.attention import PagedAttentionKernel, Scratch, Slots
from poot_executor.backends.cpu.kernels.kernel import CPU_KERNELS, view
from poot_executor.backends.cpu.kernels.linear import EmbedKernel
from poot_executor.backends.cpu.kernels.norm import AddRmsNormKernel, RmsNormKernel
from poot_executor.backends.cpu.kernels.pointwise import GatedActivationKernel
from poot_executor.backends.cpu.kernels.rotary import RotaryKvWriteKernel
from poot_executor.backends.cpu.native import NativeLibrary, load_library
from poot_executor.devices.protocol import Launch, Live
from poot_executor.encodings.types import WeightSource
from poot_executor.errors import EncodingError
from poot_executor.kernels.kernel import Operands, Site
from poot_executor.ops import AddRmsNorm, Embed, GatedActivation, PagedAttention, RmsNorm, RotaryKvWrite

# Leading rows up to which one thread in C beats torch's threads.
FEW = 16


def _library() -> NativeLibrary:
    library = load_library()
    assert not isinstance(library, str)
    return library


def _missing() -> str | None:
    library = load_library()
    return library if isinstance(library, str) else None


@CPU_KERNELS.register(RmsNorm, preferred=True)
class NativeRmsNormKernel(RmsNormKernel):
    name = "C"

    def accepts(self, site: Site) -> str | None:
        return _missing() or super().accepts(site)

    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        op, many, norm = site.op, super().bind(site, operands, device), _library().rms_norm
        assert isinstance(op, RmsNorm)

        def launch(live: Live) -> Callable[[], object]:
            x, out = view(operands.input(0), live), view(operands.outputs[0], live)
            rows = _rows(x)
            if len(x) > FEW or rows is None:
                return many(live)
            weight = operands.held[0].data_ptr()
            return partial(
                norm, x.data_ptr(), rows.stride(0), None, weight, op.offset, op.eps, out.data_ptr(), None, *rows.shape
            )

        return launch


def _rows(x: torch.Tensor) -> torch.Tensor | None:
    """x as a matrix over its last dimension, if its strides allow; per-head norms have three dimensions."""
    if x.ndim == 2:
        return x
    if len(x) == 1:
        return x[0]
    return x.view(-1, x.shape[-1]) if x.is_contiguous() else None


@CPU_KERNELS.register(AddRmsNorm, preferred=True)
class NativeAddRmsNormKernel(AddRmsNormKernel):
    name = "C"

    def accepts(self, site: Site) -> str | None:
        return _missing() or super().accepts(site)

    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        op, many, norm = site.op, super().bind(site, operands, device), _library().rms_norm
        assert isinstance(op, AddRmsNorm)

        def launch(live: Live) -> Callable[[], object]:
            x, residual = view(operands.input(0), live), view(operands.input(1), live)
            out, total = (view(output, live) for output in operands.outputs)
            if len(x) > FEW or not residual.is_contiguous() or x.ndim != 2:
                return many(live)
            weight = operands.held[0].data_ptr()
            addresses = out.data_ptr(), total.data_ptr()
            return partial(
                norm, x.data_ptr(), x.stride(0), residual.data_ptr(), weight, op.offset, op.eps, *addresses, *x.shape
            )

        return launch


@CPU_KERNELS.register(GatedActivation, preferred=True)
class NativeGatedActivationKernel(GatedActivationKernel):
    name = "C"

    def accepts(self, site: Site) -> str | None:
        if site.outputs[0].shape[-1] % 16:
            return "the width is no multiple of 16"
        return _missing() or super().accepts(site)

    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        op, many, gated = site.op, super().bind(site, operands, device), _library().gated
        assert isinstance(op, GatedActivation)
        kind = ("silu", "gelu_tanh").index(op.activation)

        def launch(live: Live) -> Callable[[], object]:
            x, out = view(operands.input(0), live), view(operands.outputs[0], live)
            if len(x) > FEW or x.ndim != 2:
                return many(live)
            return partial(gated, x.data_ptr(), x.stride(0), out.data_ptr(), *out.shape, kind)

        return launch


@CPU_KERNELS.register(RotaryKvWrite, preferred=True)
class NativeRotaryKvWriteKernel(RotaryKvWriteKernel):
    name = "C"

    def accepts(self, site: Site) -> str | None:
        if site.inputs[1].shape != site.inputs[2].shape:
            return "keys and values differ in shape"
        return _missing() or super().accepts(site)

    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        op, many, write = site.op, super().bind(site, operands, device), _library().rotary_kv_write
        assert isinstance(op, RotaryKvWrite)
        pools = tuple(view(output).data_ptr() for output in operands.outputs[1:])
        norms = operands.held[0].data_ptr() if operands.held else None
        interleaved = int(op.style == "interleaved")

        def launch(live: Live) -> Callable[[], object]:
            q, k, v, table, slots = (view(operands.input(i), live) for i in range(5))
            out = view(operands.outputs[0], live)
            if any(x.stride(1) != x.shape[2] for x in (q, k, v)):
                return many(live)
            sources = (part for x in (q, k, v) for part in (x.data_ptr(), x.stride(0)))
            addresses = table.data_ptr(), slots.data_ptr(), norms, op.offset, op.eps or 0.0, out.data_ptr(), *pools
            return partial(write, *sources, *addresses, *q.shape[:2], *k.shape[1:], table.shape[1], interleaved)

        return launch


@CPU_KERNELS.register(Embed, preferred=True)
class NativeEmbedKernel(EmbedKernel):
    name = "rows of the mapped checkpoint, C"

    def accepts(self, site: Site) -> str | None:
        library, encoding = load_library(), site.encodings[1]
        if isinstance(library, str):
            return library
        rows, width = site.inputs[1].shape
        if encoding is None or library.number(encoding, width, rows) is None:
            return f"the library does not take {encoding} of {width} columns"
        return super().accepts(site)

    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        op, many, library = site.op, super().bind(site, operands, device), _library()
        assert isinstance(op, Embed)
        table: WeightSource = operands.held[0]
        rows, width = table.shape
        number, start, pitch = (
            library.number(table.encoding, width, rows),
            table.data.ctypes.data,
            table.data.size // rows,
        )

        def launch(live: Live) -> Callable[[], object]:
            ids, out = view(operands.input(0), live).numpy(), view(operands.outputs[0], live)
            if len(out) > FEW:
                return many(live)
            target = out.data_ptr()

            def run() -> None:
                for index, token in enumerate(ids.tolist()):
                    if not 0 <= token < rows:
                        raise EncodingError(f"{table.name} has no row {token}: it has {rows} rows")
                    library.decode(number, start + token * pitch, target + 4 * width * index, width, 1, width)
                if op.scale != 1.0:
                    out.mul_(op.scale)

            return run

        return launch


@CPU_KERNELS.register(PagedAttention, preferred=True)
class NativePagedAttentionKernel(PagedAttentionKernel):
    """Decode rows one by one in C, which reads keys wherever they lie; steps with prompts as torch does."""

    name = "C for single queries; bmm, softmax, bmm"

    def accepts(self, site: Site) -> str | None:
        if site.inputs[0].shape[2] % 16 or site.inputs[1].shape != site.inputs[2].shape:
            return "the head size is no multiple of 16, or differs between keys and values"
        if getattr(site.op, "sinks", False):
            return "heads have sinks"
        return _missing() or super().accepts(site)

    def single(
        self, op: PagedAttention, k_pool: torch.Tensor, v_pool: torch.Tensor, scratch: Scratch
    ) -> Callable[[torch.Tensor, Slots, torch.Tensor], None]:
        attend = _library().attend
        kv_heads, width = k_pool.shape[1:]
        k_start, v_start, pitch = k_pool.data_ptr(), v_pool.data_ptr(), 4 * kv_heads * width
        scores, softcap = scratch.scores.data_ptr(), op.softcap or 0.0

        def run(query: torch.Tensor, slots: Slots, out: torch.Tensor) -> None:
            if isinstance(slots, slice):
                first, length, listed = slots.start * pitch, slots.stop - slots.start, None
            else:
                first, length, listed = 0, len(slots), slots.data_ptr()
            share = query.shape[0] // kv_heads
            addresses = query.data_ptr(), k_start + first, v_start + first, out.data_ptr(), scores, listed
            attend(*addresses, length, share, kv_heads, width, op.scale, softcap)

        return run
