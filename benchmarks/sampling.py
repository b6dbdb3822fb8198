"""What sampling costs a step: every row asks for everything, against greedy.

    python benchmarks/sampling.py [--rows 64] [--capacity 64] [--vocabulary 128256] [--check] [--profile]

Prepares sample entries alone, over random peaked logits and histories. Prints milliseconds of the device a run, with
the fetches of a step, and what each set of features costs more than greedy; then whether tokens and log-probabilities
agree with the definitions. --check exits 1 if the limit or a definition is missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from here import require_gpu

from poot_executor.devices import Live, open_device
from poot_executor.ops import AdjustLogits, RowLayout, TopLogProbs
from poot_executor.ops.sampling import Draw, kept_threshold
from poot_executor.programs import FULL, LOGPROBS, PENALTIES, RowTableShape, sample_graph
from poot_executor.runtime import EntryKey, EntrySet, compile_graphs, prepare

LIMIT_MS = 0.3
REPLAYS = 50
HISTORY, POSITIONS, TOP, BIAS = 300, 4096, 20, 300
ENDS = (1, 2)
SETS: dict[str, tuple[str, ...]] = {
    "greedy": (),
    "draw": (FULL,),
    "draw, penalties": (FULL, PENALTIES),
    "draw, log-probabilities": (FULL, LOGPROBS),
    "everything": (FULL, PENALTIES, LOGPROBS),
}


@dataclass(frozen=True)
class Table:
    """What the row table holds, and the rows that sample."""

    logits: torch.Tensor
    ints: torch.Tensor
    reals: torch.Tensor
    history: torch.Tensor
    order: torch.Tensor

    @staticmethod
    def random(rows: int, capacity: int, vocabulary: int) -> Table:
        """Temperature 0.8, top-p 0.9, top-k 50, all penalties; a few tokens stand out as they do for a model."""
        generator = torch.Generator().manual_seed(rows)
        logits = torch.randn(rows, vocabulary, generator=generator) * 3
        likely = torch.randint(0, vocabulary, (rows, 8), generator=generator)
        logits.scatter_(1, likely, 14 + 3 * torch.randn(rows, 8, generator=generator))
        ints = torch.zeros(capacity, RowLayout.INTS, dtype=torch.int32)
        ints[:, RowLayout.LENGTH], ints[:, RowLayout.PROMPT], ints[:, RowLayout.TOP_K] = HISTORY, HISTORY // 3, 50
        ints[:, RowLayout.SEED_LOW] = torch.arange(capacity, dtype=torch.int32)
        reals = torch.zeros(capacity, RowLayout.FLOATS)
        reals[:, RowLayout.TEMPERATURE], reals[:, RowLayout.TOP_P] = 0.8, 0.9
        reals[:, RowLayout.PRESENCE], reals[:, RowLayout.FREQUENCY], reals[:, RowLayout.REPETITION] = 0.3, 0.2, 1.1
        history = torch.zeros(capacity, POSITIONS, dtype=torch.int32)
        history[:, :HISTORY] = torch.randint(0, vocabulary, (capacity, HISTORY), generator=generator)
        order = torch.randperm(capacity, generator=generator)[:rows].int()
        history[order.long(), 90:98] = likely.int()  # some of what is likely was said before
        history[order.long(), 200:208:2] = likely[:, ::2].int()
        return Table(logits, ints, reals, history, order)


def entries(backend: str, table: Table, capacity: int) -> EntrySet:
    vocabulary = table.logits.shape[1]
    shape = RowTableShape(capacity, POSITIONS, BIAS, (1,))
    graphs = {
        EntryKey("sample", capacity, frozenset(features)): sample_graph(
            shape, capacity, vocabulary, frozenset(features), ends=ENDS, top=TOP
        )
        for features in SETS.values()
    }
    device = open_device(backend)
    began = time.perf_counter()
    found = prepare(device, compile_graphs(device, graphs), {})
    print(f"{device.name}: {len(graphs)} entries prepared in {time.perf_counter() - began:.1f} s")
    found.write_state("rows.logits", table.logits.numpy())
    found.write_state("rows.ints", table.ints.numpy())
    found.write_state("rows.floats", table.reals.numpy())
    found.write_state("rows.history", table.history.numpy())
    return found


class Sampler:
    """One entry over the table's rows."""

    def __init__(self, found: EntrySet, capacity: int, features: tuple[str, ...], order: torch.Tensor) -> None:
        self._entry, self._rows = found[EntryKey("sample", capacity, frozenset(features))], len(order)
        self._entry.stage("rows", order.numpy())
        self._names = ["tokens", "flags", *(["chosen", "top_ids", "top_values"] if LOGPROBS in features else [])]

    def run(self) -> dict[str, np.ndarray]:
        """As in a step: run, send every result on its way."""
        self._entry.run(Live(rows=self._rows))
        pending = {name: self._entry.fetch(name, self._rows) for name in self._names}
        return {name: array.result() for name, array in pending.items()}

    def launch(self) -> None:
        self._entry.run(Live(rows=self._rows))
        for name in self._names:
            self._entry.fetch(name, self._rows)


def milliseconds(call: Callable[[], None], *, on_device: bool) -> float:
    """Median of REPLAYS runs, each timed alone: by events, so that the host's part is not in it."""
    call()
    if not on_device:
        taken = []
        for _ in range(REPLAYS):
            began = time.perf_counter()
            call()
            taken.append((time.perf_counter() - began) * 1000)
        return float(np.median(taken))
    torch.cuda.synchronize()
    marks = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        # Keeps the device busy until the host has enqueued the run.
        torch.cuda._sleep(1_000_000)  # type: ignore[no-untyped-call]
        begin.record()
        call()
        end.record()
        marks.append((begin, end))
    torch.cuda.synchronize()
    return float(np.median([begin.elapsed_time(end) for begin, end in marks]))


def disagreements(table: Table, features: tuple[str, ...], found: dict[str, np.ndarray]) -> Iterator[str]:
    """What differs from the definitions."""
    rows = len(table.order)
    tokens = torch.from_numpy(found["tokens"])
    logits = table.logits
    if PENALTIES in features:
        none = torch.zeros(len(table.ints), 1, dtype=torch.int32)
        adjust = AdjustLogits(ENDS)
        (logits,) = adjust.reference(
            logits, table.order, table.ints, table.reals, none, none.float(), table.history
        )  # fmt: skip
    if found["flags"].any():
        yield f"{int(found['flags'].sum())} rows flagged"
    if FULL not in features:
        wrong = int((tokens != logits.argmax(-1)).sum())
        if wrong:
            yield f"{wrong} of {rows} greedy tokens"
    else:
        outside = 0
        for n, row in enumerate(table.order.tolist()):
            p = (logits[n].double() / float(table.reals[row, RowLayout.TEMPERATURE])).softmax(-1)
            outside += bool(p[tokens[n]] < 0.9999 * kept_threshold(p, table.ints[row], table.reals[row]))
        if outside:
            yield f"{outside} of {rows} tokens are none that the cuts leave"
        drawn, _ = Draw().reference(logits, table.order, table.ints, table.reals)
        other = int((tokens != drawn).sum())
        # Where the drawn share falls next to a border, rounding decides.
        if other > max(1, rows // 50):
            yield f"{other} of {rows} tokens are not those drawn by definition"
    if LOGPROBS in features:
        chosen, ids, values = TopLogProbs(TOP).reference(table.logits, tokens)
        for name, wanted in (("chosen", chosen), ("top_values", values)):
            if not torch.allclose(torch.from_numpy(found[name]), wanted, rtol=1e-4, atol=1e-4):
                yield f"{name} differ"
        if (torch.from_numpy(found["top_ids"]) != ids).any():
            yield "top_ids differ"


def profile(call: Callable[[], None]) -> None:
    """Device microseconds by kernel, a run."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    with record(activities=[ProfilerActivity.CUDA]) as taken:
        for _ in range(REPLAYS):
            call()
        torch.cuda.synchronize()
    events = [e for e in taken.key_averages() if e.self_device_time_total > 0]
    for event in sorted(events, key=lambda e: -e.self_device_time_total):
        each = event.self_device_time_total / REPLAYS
        print(f"  {event.key[:60]:60} {event.count / REPLAYS:5.1f} a run {each:8.2f} us")


def lines(arguments: argparse.Namespace) -> Iterator[bool]:
    rows, capacity = arguments.rows, arguments.capacity or arguments.rows
    table = Table.random(rows, capacity, arguments.vocabulary)
    found = entries(arguments.backend, table, capacity)
    on_device = arguments.backend in ("ptx", "rocm")
    base = 0.0
    print(f"{rows} rows of capacity {capacity}, vocabulary {arguments.vocabulary}")
    for name, features in SETS.items():
        sampler = Sampler(found, capacity, features, table.order)
        wrong = list(disagreements(table, features, sampler.run()))
        spent = milliseconds(sampler.launch, on_device=on_device)
        base = base or spent
        within = spent - base <= LIMIT_MS
        print(
            f"{'PASS' if within else 'FAIL'}: {name:24} {spent:7.4f} ms, {spent - base:7.4f} ms more than greedy, "
            f"{LIMIT_MS} allowed"
        )
        print(f"{'FAIL' if wrong else 'PASS'}: {name:24} {'; '.join(wrong) or 'as defined'}")
        yield within and not wrong
        if arguments.profile and on_device:
            profile(sampler.launch)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64, help="rows that sample")
    parser.add_argument("--capacity", type=int, default=0, help="rows of the entry (default: --rows)")
    parser.add_argument("--vocabulary", type=int, default=128256)
    parser.add_argument("--backend", default="ptx")
    parser.add_argument("--profile", action="store_true", help="device time by kernel")
    parser.add_argument("--check", action="store_true", help=f"fail above {LIMIT_MS} ms, or where a definition differs")
    arguments = parser.parse_args()
    require_gpu(arguments.backend)
    passed = list(lines(arguments))
    return int(arguments.check and not all(passed))


if __name__ == "__main__":
    sys.exit(main())
