"""Row table kernels: small integer work, done in numpy over the same memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from poot_executor.backends.cpu.kernels.kernel import CPU_KERNELS, CpuKernel, view
from poot_executor.devices.protocol import Launch, Live
from poot_executor.kernels.kernel import Operands, Site
from poot_executor.ops import (
    CommitTokens,
    GatherRows,
    KeepLast,
    LastRows,
    OpenRow,
    RowLayout,
    SlotMap,
    UnpackStep,
    WriteHistory,
)


@CPU_KERNELS.register(OpenRow)
class OpenRowKernel(CpuKernel):
    name = "numpy"

    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        block = view(operands.input(0)).numpy()
        states = [view(output).numpy().view(np.int32) for output in operands.outputs]

        def run() -> None:
            row, at = block[0], 1
            for state in states:
                width = state.shape[1]
                state[row] = block[at : at + width]
                at += width

        return lambda live: run


@CPU_KERNELS.register(WriteHistory)
class WriteHistoryKernel(CpuKernel):
    name = "numpy"

    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        block, history = view(operands.input(0)).numpy(), view(operands.outputs[0]).numpy()
        start = RowLayout.RECALL_HEADER

        def run() -> None:
            row, first, count = block[:start].tolist()
            history[row, first : first + count] = block[start : start + count]

        return lambda live: run


@CPU_KERNELS.register(UnpackStep)
class UnpackStepKernel(CpuKernel):
    name = "numpy"

    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        block = view(operands.input(0)).numpy()
        ids, positions, of_row, runs, ints, history = (view(output).numpy() for output in operands.outputs)
        start = RowLayout.HEADER
        given = block[start + RowLayout.RUN * len(ints) :]

        def launch(live: Live) -> Callable[[], object]:
            sent = block[start : start + RowLayout.RUN * live.runs].reshape(live.runs, RowLayout.RUN)

            def run() -> None:
                at = 0
                runs[live.runs :] = 0
                for index, (row, first, length, flags) in enumerate(sent.tolist()):
                    if first == RowLayout.CONTINUE:
                        first = int(ints[row, RowLayout.LENGTH])  # noqa: PLW2901
                    end = at + length
                    if flags & RowLayout.PROMPT_RUN:
                        history[row, first : first + length] = given[at:end]
                    ids[at:end] = history[row, first : first + length]
                    positions[at:end] = range(first, first + length) if length < 8 else np.arange(first, first + length)
                    of_row[at:end] = row
                    runs[index] = (row, first, length, flags)
                    ints[row, RowLayout.LENGTH] = first + length
                    at = end

            return run

        return launch


@CPU_KERNELS.register(SlotMap)
class SlotMapKernel(CpuKernel):
    name = "numpy"

    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        op = site.op
        assert isinstance(op, SlotMap)
        table = view(operands.input(2)).numpy()

        def launch(live: Live) -> Callable[[], object]:
            positions, rows, slots = (
                view(operand, live).numpy() for operand in (operands.input(0), operands.input(1), operands.outputs[0])
            )

            def run() -> None:
                block, within = np.divmod(positions, op.block)
                slots[:] = table[rows, block % table.shape[1]] * op.block + within

            return run

        return launch


@CPU_KERNELS.register(KeepLast)
class KeepLastKernel(CpuKernel):
    name = "numpy"

    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        op = site.op
        assert isinstance(op, KeepLast)
        runs = view(operands.input(1)).numpy()
        kept = view(operands.outputs[0]).numpy()

        def launch(live: Live) -> Callable[[], object]:
            hidden = view(operands.input(0), live).numpy()

            def run() -> None:
                rows = runs[: live.runs]
                kept[rows[:, 0]] = hidden if op.taken else hidden[rows[:, 2].cumsum() - 1]

            return run

        return launch


@CPU_KERNELS.register(LastRows)
class LastRowsKernel(CpuKernel):
    name = "numpy"

    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        runs = view(operands.input(1)).numpy()

        def launch(live: Live) -> Callable[[], object]:
            x, out = (view(operand, live).numpy() for operand in (operands.input(0), operands.outputs[0]))

            def run() -> None:
                out[:] = x[runs[: live.runs, 2].cumsum() - 1]

            return run

        return launch


@CPU_KERNELS.register(GatherRows)
class GatherRowsKernel(CpuKernel):
    name = "index_select"

    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        x = view(operands.input(0))

        def launch(live: Live) -> Callable[[], object]:
            index, out = view(operands.input(1), live), view(operands.outputs[0], live)

            def run() -> None:
                torch.index_select(x, 0, index, out=out)

            return run

        return launch


@CPU_KERNELS.register(CommitTokens)
class CommitTokensKernel(CpuKernel):
    name = "numpy"

    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        ints, history = view(operands.input(2)).numpy(), view(operands.outputs[0]).numpy()

        def launch(live: Live) -> Callable[[], object]:
            tokens, rows = view(operands.input(0), live).numpy(), view(operands.input(1), live).numpy()

            def run() -> None:
                history[rows, ints[rows, RowLayout.LENGTH]] = tokens

            return run

        return launch
