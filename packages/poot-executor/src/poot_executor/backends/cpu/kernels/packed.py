"""Products with weights as they lie in the checkpoint: no weight memory but the file's cached pages.

Few rows go through the C library, which decodes as it multiplies. For many rows pieces of the weight are decoded to
float32 and multiplied by torch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from poot_executor.backends.cpu.kernels.kernel import CPU_KERNELS, CpuKernel, typed, view
from poot_executor.backends.cpu.native import NativeLibrary, load_library
from poot_executor.backends.cpu.native.library import MAX_ROWS
from poot_executor.backends.cpu.weights import f32_form
from poot_executor.devices.protocol import Launch, Live
from poot_executor.encodings.dequantise import byte_tensor
from poot_executor.encodings.types import Dense, WeightSource, nbytes
from poot_executor.ir.types import DType
from poot_executor.kernels.kernel import Operands, Site, WeightForm
from poot_executor.ops import Linear

# Rows up to which decoding a weight once for each MAX_ROWS of them beats writing it out decoded.
_FEW = 3 * MAX_ROWS
# Elements of a weight decoded at a time: large enough for an efficient product, small enough for the cache.
_PIECE = 2**20


@CPU_KERNELS.register(Linear, preferred=True)
class PackedLinearKernel(CpuKernel):
    """Refuses where there is no library or it lacks the encoding: the dense kernel takes over."""

    name = "packed weights, C"

    def accepts(self, site: Site) -> str | None:
        library = load_library()
        if isinstance(library, str):
            return library
        op = site.op
        assert isinstance(op, Linear)
        for encoding, type_ in zip(site.encodings[1 : 1 + op.weights], site.inputs[1:], strict=False):
            if encoding is None or library.number(encoding, type_.shape[1], type_.shape[0]) is None:
                return f"the library does not take {encoding} of {type_.shape[1]} columns"
        return None

    def forms(self, site: Site) -> tuple[WeightForm, ...]:
        op = site.op
        assert isinstance(op, Linear)
        mapped = tuple(_mapped_form(site, i) for i in range(1, 1 + op.weights))
        if not op.bias:
            return mapped
        return (*mapped, f32_form(site, range(1 + op.weights, 1 + 2 * op.weights)))

    def workspace(self, site: Site) -> int:
        if site.inputs[0].shape[0] <= _FEW:
            return 0
        op = site.op
        assert isinstance(op, Linear)
        return 4 * max(_piece_rows(type_.shape) * type_.shape[1] for type_ in site.inputs[1 : 1 + op.weights])

    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        op, library = site.op, load_library()
        assert isinstance(op, Linear) and not isinstance(library, str)
        sources: tuple[WeightSource, ...] = operands.held[: op.weights]
        bias = operands.held[op.weights] if op.bias else None

        def launch(live: Live) -> Callable[[], object]:
            x, out = view(operands.input(0), live), view(operands.outputs[0], live)
            if len(x) <= _FEW:
                run = _few(library, x, out, sources)
            else:
                assert operands.workspace is not None
                scratch = typed(operands.workspace, (operands.workspace.type.shape[0] // 4,), None, DType.F32)
                run = _many(library, x, out, sources, scratch)
            return run if bias is None else partial(_with_bias, run, out, bias)

        return launch


def _mapped_form(site: Site, index: int) -> WeightForm:
    """The checkpoint's own bytes. They are read in every step, so their cached pages count as memory in use."""
    encoding = site.encodings[index]
    assert encoding is not None
    return WeightForm("mapped", (str(site.names[index]),), nbytes(encoding, site.inputs[index].shape))


def _piece_rows(shape: tuple[int, ...]) -> int:
    return min(shape[0], max(1, _PIECE // shape[1]))


def _with_bias(run: Callable[[], object], out: torch.Tensor, bias: torch.Tensor) -> None:
    run()
    out.add_(bias)


def _few(
    library: NativeLibrary, x: torch.Tensor, out: torch.Tensor, sources: tuple[WeightSource, ...]
) -> Callable[[], object]:
    calls, column = [], 0
    for source in sources:
        rows, width = source.shape
        number, pitch = library.number(source.encoding, width, rows), out.stride(0)
        for first in range(0, len(x), MAX_ROWS):
            part = x[first : first + MAX_ROWS]
            target = out.data_ptr() + 4 * (first * pitch + column)
            left = number, source.data.ctypes.data, part.data_ptr(), part.stride(0)
            calls.append(partial(library.matmul, *left, target, pitch, len(part), rows, width))
        column += rows
    if len(calls) == 1:
        return calls[0]

    def run() -> None:
        for call in calls:
            call()

    return run


def _many(
    library: NativeLibrary, x: torch.Tensor, out: torch.Tensor, sources: tuple[WeightSource, ...], scratch: torch.Tensor
) -> Callable[[], object]:
    pieces, column = [], 0
    for source in sources:
        step = _piece_rows(source.shape)
        for first in range(0, source.shape[0], step):
            piece = source.rows(first, min(first + step, source.shape[0]))
            pieces.append((piece, out[:, column + first : column + first + piece.shape[0]]))
        column += source.shape[0]

    def run() -> None:
        for piece, target in pieces:
            torch.mm(x, _decoded(library, piece, scratch).t(), out=target)

    return run


def _decoded(library: NativeLibrary, piece: WeightSource, scratch: torch.Tensor) -> torch.Tensor:
    """The piece as a float32 matrix: in scratch, or where it lies if it is one already."""
    rows, width = piece.shape
    address = piece.data.ctypes.data
    if piece.encoding == Dense("F32") and address % 4 == 0:
        return byte_tensor(piece).view(torch.float32).view(rows, width)
    weight = scratch[: rows * width].view(rows, width)
    library.decode(library.number(piece.encoding, width, rows), address, weight.data_ptr(), width, rows, width)
    return weight
