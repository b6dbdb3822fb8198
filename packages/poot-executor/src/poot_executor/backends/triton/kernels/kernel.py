"""The base of Triton kernels, and torch views of their operands.

A launch here runs over the whole capacity: programs beyond the live count, which they read from `device.live`, leave at
once. So one recording serves every count.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
import triton
import triton.language as tl

from poot_executor.backends.triton.memory import TorchAllocation
from poot_executor.backends.triton.packed import layout_of
from poot_executor.devices.protocol import Launch, Live
from poot_executor.ir.types import DType, TensorType
from poot_executor.kernels.kernel import KernelTable, Operand, Operands, Site, WeightForm

TRITON_KERNELS = KernelTable("triton")

TORCH_TYPES = {
    DType.F32: torch.float32,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.I32: torch.int32,
    DType.U8: torch.uint8,
}

# Places of the counts in `device.live`; the last one always holds a number that no capacity exceeds.
LIVE_INDEX = {"tokens": 0, "runs": 1, "rows": 2, None: 3}
UNBOUNDED = 2**30

# Why a kernel for dense weights refuses a site.
PACKED = "its weights are packed"


@triton.jit
def begin_kernel(PDL: tl.constexpr):
    """Programmatic dependent launch: programs start while the kernel before still runs, and wait for its results here.

    Only then may the next kernel start, so that programs that wait are few. Before this call only weights and live
    counts may be read, and by attention tables of rows and plans (see `plan`): other kernels are between, which write
    its keys. Programs that have no live work may leave before it, if any other program of the kernel stays. Does not
    compile for AMD, hence the constant.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def prefetch(pointers):
    """Bring the lines of 128 bytes that these point into to the cache of the device."""
    code: tl.constexpr = "prefetch.global.L2 [$1]; mov.u32 $0, 0;"
    tl.inline_asm_elementwise(code, "=r,l", [pointers.to(tl.int64)], tl.int32, is_pure=False, pack=1)


class TritonKernel:
    """Defaults: accepts every site, no weights, no workspace. Subclasses give `calls`, what a launch enqueues."""

    name = "triton"

    def accepts(self, site: Site) -> str | None:
        return None

    def forms(self, site: Site) -> tuple[WeightForm, ...]:
        return ()

    def workspace(self, site: Site) -> int:
        return 0

    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        call = self.call(site, operands, device)

        def launch(live: Live) -> Callable[[], object]:
            return call

        return launch

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        """What to enqueue, over the whole capacity. `device.live` is an int32 tensor of the live counts."""
        raise TypeError(f"{type(self).__name__} has nothing to enqueue")


def is_packed(site: Site) -> bool:
    """Whether all of its matrices can be held packed. Then they are, and no kernel may ask for them otherwise."""
    given = zip(site.encodings, site.inputs, strict=True)
    matrices = [encoding for encoding, type_ in given if encoding is not None and len(type_.shape) > 1]
    return bool(matrices) and all(layout_of(encoding) is not None for encoding in matrices)


def live_index(type_: TensorType) -> int:
    """Where in `device.live` the count of a value's leading dimension stands."""
    return LIVE_INDEX[type_.live]


def view(operand: Operand) -> torch.Tensor:
    """The operand as a torch view of its whole capacity."""
    return typed(operand, operand.type.shape, operand.strides, operand.type.dtype)


def typed(
    operand: Operand, shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: DType, offset: int = 0
) -> torch.Tensor:
    """A view of this shape from `offset` bytes into the operand on; dense unless `strides` are given."""
    if not isinstance(operand.allocation, TorchAllocation):
        raise TypeError("not an operand of this device")
    start, views = operand.offset + offset, operand.allocation.views
    made = views.get(key := (start, shape, strides, dtype))
    if made is None:
        raw = operand.allocation.tensor[start:]
        elements = raw[: raw.numel() // dtype.size * dtype.size].view(TORCH_TYPES[dtype])
        made = elements[: prod(shape)].view(shape) if strides is None else elements.as_strided(shape, strides)
        views[key] = made
    return made


def place(site: Site, operands: Operands) -> tuple[object, ...]:
    """What the time of a product depends on: its repr is the same in every process, and addresses are not in it."""
    x, out = operands.input(0), operands.outputs[0]
    return site.op, *((it.type.dtype.value, it.type.shape, it.strides) for it in (x, out))


def dense_form(site: Site, inputs: tuple[int, ...]) -> WeightForm:
    """Weights side by side in the activation type (one dimension: float32)."""
    names = tuple(str(site.names[i]) for i in inputs)
    shapes = [site.inputs[i].shape for i in inputs]
    if len(shapes[0]) == 1:
        return WeightForm("vector", names, 4 * sum(prod(shape) for shape in shapes))
    return WeightForm("dense", names, site.activation.size * sum(prod(shape) for shape in shapes))
