"""Choosing tokens: the launches of greedy choice, draws, log-probabilities and adjusted logits."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
import triton

from poot_executor.backends.triton.kernels import best, cut, draw, penalties, top
from poot_executor.backends.triton.kernels.best import CHUNK
from poot_executor.backends.triton.kernels.kernel import TRITON_KERNELS, TritonKernel, live_index, typed, view
from poot_executor.ir.types import DType
from poot_executor.kernels.kernel import Operand, Operands, Site
from poot_executor.ops import AdjustLogits, Draw, Greedy, TopLogProbs

Part = tuple[tuple[int, ...], torch.dtype]

_MOST_ALTERNATIVES = 128


def _offsets(parts: tuple[Part, ...]) -> tuple[int, ...]:
    """Where each part begins, and where the last one ends, in bytes."""
    ends = [0]
    for shape, dtype in parts:
        ends.append(ends[-1] + -(-prod(shape) * dtype.itemsize // 256) * 256)
    return tuple(ends)


def _carve(workspace: Operand | None, parts: tuple[Part, ...]) -> tuple[torch.Tensor, ...]:
    """The parts as tensors over the workspace."""
    if workspace is None:
        raise TypeError("no workspace was given")
    starts = _offsets(parts)
    return tuple(
        typed(workspace, (prod(shape) * dtype.itemsize,), None, DType.U8, start).view(dtype).view(shape)
        for (shape, dtype), start in zip(parts, starts, strict=False)
    )


class _Sampling(TritonKernel):
    """Kernels over rows of float32 logits, with scratch in parts."""

    def parts(self, site: Site) -> tuple[Part, ...]:
        return ()

    def accepts(self, site: Site) -> str | None:
        return None if site.inputs[0].dtype is DType.F32 else "the logits are not float32"

    def workspace(self, site: Site) -> int:
        return _offsets(self.parts(site))[-1]


def _size(site: Site) -> tuple[int, int]:
    """Rows, and chunks a row."""
    return site.outputs[0].shape[0], triton.cdiv(site.inputs[0].shape[1], CHUNK)


def _launch(site: Site, device: Any) -> dict[str, Any]:
    """Arguments of every launch over the site's rows."""
    return {"LIVE": live_index(site.outputs[0]), **device.launch}


@TRITON_KERNELS.register(Greedy)
class GreedyKernel(_Sampling):
    def parts(self, site: Site) -> tuple[Part, ...]:
        return (_size(site), torch.float32), (_size(site), torch.int32)

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        logits, live, launch = view(operands.input(0)), device.live, _launch(site, device)
        tokens, flags = (view(output) for output in operands.outputs)
        greatest, ids = _carve(operands.workspace, self.parts(site))
        rows, chunks = _size(site)
        pitch, width, across = logits.stride(0), logits.shape[1], triton.next_power_of_2(chunks)

        def run() -> None:
            best.chunk_best[(chunks, rows)](
                logits, pitch, width, greatest, ids, greatest, live, CHUNK=CHUNK, LEAST=False, num_warps=8, **launch
            )
            best.greedy[(rows,)](greatest, ids, tokens, flags, live, chunks, CHUNKS=across, num_warps=1, **launch)

        return run


@TRITON_KERNELS.register(Draw)
class DrawKernel(_Sampling):
    def parts(self, site: Site) -> tuple[Part, ...]:
        rows, chunks = _size(site)
        return (
            ((rows, chunks), torch.float32),  # greatest logits
            ((rows, chunks), torch.int32),  # their ids
            ((rows, chunks), torch.float32),  # least logits
            ((rows, cut.STATE.value), torch.float64),
            ((rows, cut.ASKS.value), torch.int32),
            ((rows, 2, cut.EDGES), torch.float32),
            ((rows, 2, chunks, cut.EDGES), torch.float32),  # sums
            ((rows, 2), torch.int32),  # how many were gathered
            ((rows, cut.ROOM), torch.float32),
            ((rows, chunks), torch.int64),  # masses
        )

    def accepts(self, site: Site) -> str | None:
        if site.inputs[0].shape[1] > draw.WIDEST:
            return f"the vocabulary is larger than {draw.WIDEST}"
        return super().accepts(site)

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        logits, rows, ints, reals = (view(operands.input(i)) for i in range(4))
        tokens, flags = (view(output) for output in operands.outputs)
        greatest, ids, least, state, asks, edges, sums, gathered, candidates, masses = _carve(
            operands.workspace, self.parts(site)
        )
        live, launch, (count, chunks) = device.live, _launch(site, device), _size(site)
        pitch, width, across = logits.stride(0), logits.shape[1], triton.next_power_of_2(chunks)
        wide, narrow = (chunks, count), (count,)

        def search(mass: bool) -> None:
            for second in (False, True):
                cut.weigh[wide](
                    logits, pitch, width, rows, ints, reals, state, asks, edges, sums, live, chunks,
                    CHUNK=CHUNK, CHUNKS=across, EDGES=cut.EDGES, BLOCK=512, MASS=mass, SECOND=second,
                    num_warps=4, **launch,
                )  # fmt: skip
            cut.gather[wide](
                logits, pitch, width, state, asks, edges, sums, gathered, candidates, live, chunks,
                CHUNK=CHUNK, CHUNKS=across, EDGES=cut.EDGES, ROOM=cut.ROOM, MASS=mass, num_warps=8, **launch,
            )  # fmt: skip
            cut.settle[narrow](
                logits, pitch, width, rows, reals, state, asks, gathered, candidates, live,
                ROOM=cut.ROOM, BLOCK=4096, MASS=mass, num_warps=16, **launch,
            )  # fmt: skip

        def run() -> None:
            best.chunk_best[wide](
                logits, pitch, width, greatest, ids, least, live, CHUNK=CHUNK, LEAST=True, num_warps=8, **launch
            )
            draw.begin[narrow](
                greatest, ids, least, rows, ints, reals, tokens, flags, state, asks, gathered, live, width, chunks,
                CHUNKS=across, num_warps=1, **launch,
            )  # fmt: skip
            search(mass=False)
            search(mass=True)
            draw.keep[wide](
                logits, pitch, width, rows, reals, state, asks, masses, live, CHUNK=CHUNK, num_warps=8, **launch
            )
            draw.pick[narrow](
                logits, pitch, width, rows, ints, reals, state, asks, masses, tokens, live, chunks,
                CHUNK=CHUNK, CHUNKS=across, num_warps=8, **launch,
            )  # fmt: skip

        return run


@TRITON_KERNELS.register(TopLogProbs)
class TopLogProbsKernel(_Sampling):
    def parts(self, site: Site) -> tuple[Part, ...]:
        size = _size(site)
        return (
            (size, torch.float32),  # greatest logits
            (size, torch.float32),  # sums
            (size, torch.int32),  # how many candidates
            ((*size, site.outputs[1].shape[1]), torch.int64),
        )

    def accepts(self, site: Site) -> str | None:
        if site.outputs[1].shape[1] > _MOST_ALTERNATIVES:
            return f"more than {_MOST_ALTERNATIVES} alternatives"
        return super().accepts(site)

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        logits, given = view(operands.input(0)), view(operands.input(1))
        chosen, ids, values = (view(output) for output in operands.outputs)
        greatest, sums, found, pairs = _carve(operands.workspace, self.parts(site))
        live, launch, (rows, chunks), k = device.live, _launch(site, device), _size(site), ids.shape[1]
        pitch, width, across = logits.stride(0), logits.shape[1], triton.next_power_of_2(chunks)
        slots = triton.next_power_of_2(k)
        warps = max(1, min(16, across * slots // 256))

        def run() -> None:
            top.chunk_sum[(chunks, rows)](
                logits, pitch, width, greatest, sums, live, CHUNK=CHUNK, num_warps=8, **launch
            )
            top.chunk_top[(chunks, rows)](
                logits, pitch, width, greatest, found, pairs, live,
                CHUNK=CHUNK, CHUNKS=across, K=k, num_warps=8, **launch,
            )  # fmt: skip
            top.merge_top[(rows,)](
                logits, pitch, width, given, greatest, sums, found, pairs, chosen, ids, values, live, chunks,
                CHUNKS=across, K=k, SLOTS=slots, num_warps=warps, **launch,
            )  # fmt: skip

        return run


@TRITON_KERNELS.register(AdjustLogits)
class AdjustLogitsKernel(_Sampling):
    def parts(self, site: Site) -> tuple[Part, ...]:
        return (((site.outputs[0].shape[0], site.inputs[4].shape[1]), torch.int32),)

    def call(self, site: Site, operands: Operands, device: Any) -> Callable[[], object]:
        op = site.op
        assert isinstance(op, AdjustLogits)
        logits, rows, ints, reals, bias_ids, bias_values, history = (view(operands.input(i)) for i in range(7))
        result = view(operands.outputs[0])
        counts = result.view(torch.int32)
        (aside,) = _carve(operands.workspace, self.parts(site))
        ends = torch.tensor(op.ends, dtype=torch.int32, device=result.device)
        live, launch, (count, chunks) = device.live, _launch(site, device), _size(site)
        pitch, width, biases, held = logits.stride(0), logits.shape[1], bias_ids.shape[1], history.stride(0)
        wide, positions, entries = (chunks, count), triton.cdiv(history.shape[1], 1024), triton.cdiv(biases, 64)

        def run() -> None:
            penalties.clear[wide](counts, rows, reals, live, width, CHUNK=CHUNK, num_warps=8, **launch)
            penalties.count[(positions, count)](
                counts, rows, ints, reals, history, held, live, width, BLOCK=1024, **launch
            )
            penalties.set_aside[(entries, count)](
                counts, rows, ints, reals, bias_ids, biases, aside, live, width, BLOCK=64, num_warps=2, **launch
            )
            penalties.adjust[wide](
                logits, pitch, width, counts, result, rows, reals, live, CHUNK=CHUNK, num_warps=8, **launch
            )
            penalties.bias[(entries, count)](
                logits, pitch, width, rows, ints, reals, bias_ids, bias_values, biases, aside, result, live,
                BLOCK=64, **launch,
            )  # fmt: skip
            if op.ends:
                block = triton.next_power_of_2(len(ends))
                penalties.ban[(count,)](
                    result, width, rows, ints, ends, live, len(ends), BLOCK=block, num_warps=1, **launch
                )

        return run
