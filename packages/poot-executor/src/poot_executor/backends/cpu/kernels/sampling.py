"""Sampling on the CPU: row by row, since rows differ in what they ask for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from poot_executor.backends.cpu.kernels.kernel import CPU_KERNELS, CpuKernel, view
from poot_executor.devices.protocol import Launch, Live
from poot_executor.kernels.kernel import Operands, Site
from poot_executor.ops import AdjustLogits, Draw, Greedy, RowLayout, TopLogProbs
from poot_executor.ops.sampling import uniform

# The nucleus is sought among this many greatest probabilities before all are sorted.
_NUCLEUS = 1024


@CPU_KERNELS.register(AdjustLogits)
class AdjustLogitsKernel(CpuKernel):
    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        op = site.op
        assert isinstance(op, AdjustLogits)
        ints, reals, bias_ids, bias_values, history = (view(operands.input(i)).numpy() for i in range(2, 7))
        ends = np.array(op.ends, dtype=np.int64)

        def launch(live: Live) -> Callable[[], object]:
            rows, result = view(operands.input(1), live).numpy(), view(operands.outputs[0], live)
            logits = view(operands.input(0))[: len(rows)]
            target = result.numpy()

            def run() -> None:
                result.copy_(logits)
                for n, row in enumerate(rows.tolist()):
                    count, length = ints[row, RowLayout.BIAS_COUNT], ints[row, RowLayout.LENGTH]
                    if count:
                        np.add.at(target[n], bias_ids[row, :count], bias_values[row, :count])
                    _penalise(target[n], history[row, :length], ints[row, RowLayout.PROMPT], reals[row])
                    if length < ints[row, RowLayout.MIN_LENGTH]:
                        target[n, ends] = -np.inf

            return run

        return launch


def _penalise(
    logits: npt.NDArray[np.float32], past: npt.NDArray[np.int32], prompt: int, reals: npt.NDArray[np.float32]
) -> None:
    repetition, frequency, presence = (
        reals[column] for column in (RowLayout.REPETITION, RowLayout.FREQUENCY, RowLayout.PRESENCE)
    )
    if repetition != 1:
        seen = np.unique(past)
        scores = logits[seen]
        logits[seen] = np.where(scores > 0, scores / repetition, scores * repetition)
    if frequency or presence:
        output, counts = np.unique(past[prompt:], return_counts=True)
        logits[output] -= frequency * counts.astype(np.float32) + presence


@CPU_KERNELS.register(Greedy)
class GreedyKernel(CpuKernel):
    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        def launch(live: Live) -> Callable[[], object]:
            tokens, flags = (view(output, live) for output in operands.outputs)
            logits = view(operands.input(0))[: len(tokens)]

            def run() -> None:
                _greedy(logits, tokens, flags)

            return run

        return launch


def _greedy(logits: torch.Tensor, tokens: torch.Tensor, flags: torch.Tensor) -> None:
    best, found = logits.max(-1)
    usable = torch.isfinite(best)
    torch.logical_not(usable, out=flags)
    tokens.copy_(found)
    tokens.mul_(usable)


@CPU_KERNELS.register(Draw)
class DrawKernel(CpuKernel):
    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        ints, reals = (view(operands.input(i)).numpy() for i in (2, 3))

        def launch(live: Live) -> Callable[[], object]:
            tokens, flags = (view(output, live) for output in operands.outputs)
            rows = view(operands.input(1), live).numpy()
            logits = view(operands.input(0))[: len(tokens)]

            def run() -> None:
                _greedy(logits, tokens, flags)
                for n, row in enumerate(rows.tolist()):
                    if reals[row, RowLayout.TEMPERATURE] != 0 and not flags[n]:
                        tokens[n] = _draw(logits[n], ints[row], reals[row])

            return run

        return launch


def _draw(logits: torch.Tensor, ints: npt.NDArray[np.int32], reals: npt.NDArray[np.float32]) -> int:
    # Less the greatest, so that a small temperature overflows to nothing but minus infinity.
    p = torch.softmax((logits - logits.max()) / float(reals[RowLayout.TEMPERATURE]), -1)
    threshold = _threshold(p, int(ints[RowLayout.TOP_K]), float(reals[RowLayout.TOP_P]), float(reals[RowLayout.MIN_P]))
    if threshold > 0:
        p.masked_fill_(p < threshold, 0.0)
    running = p.cumsum(-1, dtype=torch.float64)
    low, high, length = (int(ints[c]) for c in (RowLayout.SEED_LOW, RowLayout.SEED_HIGH, RowLayout.LENGTH))
    target = uniform(low, high, length) * running[-1]
    return int(torch.searchsorted(running, target, right=True))


def _threshold(p: torch.Tensor, top_k: int, top_p: float, min_p: float) -> float:
    """The least probability that survives; 0 when all do."""
    size = len(p)
    top_k = top_k if 0 < top_k < size else size
    threshold, greatest = 0.0, float(p.max()) if min_p else 0.0
    if top_k < size:
        ordered = p.topk(top_k).values
        threshold = float(ordered[-1])
        ties = int((p == threshold).sum()) - int((ordered == threshold).sum())
        ordered = torch.cat([ordered, ordered[-1:].expand(ties)]) if ties else ordered
        mass = float(ordered.sum(dtype=torch.float64))
    if top_p < 1:
        if top_k == size:
            mass = float(p.sum(dtype=torch.float64))
            ordered = p.topk(min(_NUCLEUS, size)).values
            if float(ordered.sum(dtype=torch.float64)) < top_p * mass:
                ordered = p.sort(descending=True).values
        reached = int((ordered.cumsum(-1, dtype=torch.float64) < top_p * mass).sum())
        threshold = float(ordered[min(reached, len(ordered) - 1)])
    return max(threshold, greatest * min_p)


@CPU_KERNELS.register(TopLogProbs)
class TopLogProbsKernel(CpuKernel):
    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        op = site.op
        assert isinstance(op, TopLogProbs)

        def launch(live: Live) -> Callable[[], object]:
            tokens = view(operands.input(1), live)
            logits = view(operands.input(0))[: len(tokens)]
            chosen, ids, values = (view(output, live) for output in operands.outputs)

            def run() -> None:
                total = logits.logsumexp(-1, keepdim=True)
                best, found = _top(logits, op.k)
                torch.sub(best, total, out=values)
                ids.copy_(found)
                torch.sub(logits.gather(1, tokens.long()[:, None])[:, 0], total[:, 0], out=chosen)

            return run

        return launch


def _top(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k greatest of each row and their ids, lowest id first among equals, which topk leaves open."""
    best, found = logits.topk(k)
    least = best[:, -1:]
    cut = (logits == least).sum(-1) > (best == least).sum(-1)  # equals of the last one were left out: which is open
    for row in cut.nonzero()[:, 0].tolist():
        best[row], found[row] = (part[:k] for part in logits[row].sort(descending=True, stable=True))
    order = torch.argsort(found, dim=-1)
    order = order.gather(1, torch.argsort(best.gather(1, order), dim=-1, descending=True, stable=True))
    return best.gather(1, order), found.gather(1, order)
