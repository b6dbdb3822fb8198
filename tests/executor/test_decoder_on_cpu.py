"""A whole decoder on the CPU against the interpreter: pages, windows, chunks, batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from poot_executor.backends.cpu.kernels import attention
from poot_executor.devices import Live, open_device
from poot_executor.errors import GraphError
from poot_executor.ops import RowLayout
from poot_executor.programs import open_graph, sample_graph
from poot_executor.runtime import EntryKey, EntrySet, compile_graphs, prepare
from poot_executor.testing import interpret

CAPACITY = 16
STEP, HEAD, SAMPLE, OPEN = EntryKey("step", CAPACITY), EntryKey("head", 3), EntryKey("sample", 3), EntryKey("open", 1)
PROMPT = [3, 14, 15, 9, 26, 53, 58, 9, 7, 9, 32, 38, 46]


class Runner:
    """A prepared decoder whose rows have shuffled block tables."""

    def __init__(self, model: Any) -> None:
        self.model, device = model, open_device("cpu")
        graphs = {STEP: model.step(CAPACITY), HEAD: model.head_graph(3), OPEN: open_graph(model.table)}
        graphs[SAMPLE] = sample_graph(model.table, 3, model.vocabulary, frozenset(), ends=(), top=1)
        self.graphs = graphs
        self.entries: EntrySet = prepare(device, compile_graphs(device, graphs), model.weights())
        blocks = np.random.default_rng(5).permutation(model.rows * model.blocks).reshape(model.rows, -1)
        for row in range(model.rows):
            self.entries[OPEN].stage("block", model.open_block(row, table=blocks[row].tolist()))
            self.entries[OPEN].run(Live())

    def step(self, runs: list[tuple[int, int, list[int] | int]]) -> np.ndarray:
        """Run and sample greedily for the runs' rows; their logits."""
        block, live = self.model.step_block(CAPACITY, runs)
        self.entries[STEP].stage("block", block)
        self.entries[STEP].run(live)
        rows = np.array([row for row, _, _ in runs], np.int32)
        for key in (HEAD, SAMPLE):
            self.entries[key].stage("rows", rows)
            self.entries[key].run(Live(rows=len(rows)))
        return self.entries.read_state("rows.logits", len(rows))

    def expected(self, row_tokens: list[int]) -> np.ndarray:
        """Logits after these tokens, by the interpreter: one row, one prompt, blocks in order."""
        model = self.model
        block, live = model.step_block(len(row_tokens), [(0, 0, row_tokens)])
        table = torch.arange(model.rows * model.blocks, dtype=torch.int32).view(model.rows, -1)
        states = interpret(
            model.step(len(row_tokens)),
            live=live,
            inputs={"block": torch.from_numpy(block)},
            weights=model.weights(),
            states={"rows.table.0": table},
        ).states
        found = interpret(
            self.graphs[HEAD],
            live=Live(rows=1),
            inputs={"rows": torch.zeros(1, dtype=torch.int32)},
            weights=model.weights(),
            states={"rows.hidden": states["rows.hidden"]},
        )
        return found.states["rows.logits"][0].numpy()


def close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("sizes", [{}, {"window": 5}, {"heads": 6, "kv_heads": 1}, {"head": 32, "width": 64}])
def test_prompt_chunks_and_decode_steps(decoder: Any, sizes: dict[str, Any]) -> None:
    runner = Runner(decoder(**sizes))
    runner.step([(1, 0, PROMPT[:5])])
    logits = runner.step([(1, 5, PROMPT[5:])])
    close(logits[0], runner.expected(PROMPT))
    tokens = [*PROMPT, int(logits[0].argmax())]
    for _ in range(4):
        logits = runner.step([(1, RowLayout.CONTINUE, 1)])
        close(logits[0], runner.expected(tokens))
        tokens.append(int(logits[0].argmax()))


@pytest.mark.parametrize("window", [None, 4])
def test_rows_of_a_batch_do_not_touch_each_other(decoder: Any, window: int | None) -> None:
    runner = Runner(decoder(window=window))
    first = runner.step([(2, 0, PROMPT[:6]), (0, 0, PROMPT[6:9])])
    second = runner.step([(0, RowLayout.CONTINUE, 1), (1, 0, PROMPT), (2, RowLayout.CONTINUE, 1)])
    with_next = [[*PROMPT[6:9], int(first[1].argmax())], PROMPT, [*PROMPT[:6], int(first[0].argmax())]]
    for logits, tokens in zip(second, with_next, strict=True):
        close(logits, runner.expected(tokens))


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("queries", [1, 2, 3, 5])
def test_long_items_are_cut_into_products(
    decoder: Any, monkeypatch: pytest.MonkeyPatch, window: int | None, queries: int
) -> None:
    """Each remainder too: a last piece of one query has keys behind its window."""
    model = decoder(window=window)
    longest = model.blocks * model.block
    monkeypatch.setattr(attention, "_SCORE_BYTES", 4 * model.heads * longest * queries)
    runner = Runner(model)
    close(runner.step([(0, 0, PROMPT)])[0], runner.expected(PROMPT))


def test_a_table_that_runs_on_and_one_that_does_not_agree(decoder: Any) -> None:
    """Keys of blocks that follow each other are read in place, others are gathered."""
    found = []
    for table in ([3, 4, 5, 6, 7, 8, 9, 10, 11, 12], [9, 2, 5, 0, 7, 11, 4, 1, 20, 14]):
        runner = Runner(decoder())
        runner.entries[OPEN].stage("block", runner.model.open_block(0, table=table))
        runner.entries[OPEN].run(Live())
        found.append(runner.step([(0, 0, PROMPT)]))
    close(*found)


def test_decode_leaves_the_thread_count_alone(decoder: Any) -> None:
    before = torch.get_num_threads()
    Runner(decoder()).step([(0, 0, PROMPT[:2])])
    assert torch.get_num_threads() == before


def test_the_interpreter_says_what_is_missing(decoder: Any) -> None:
    graph = decoder().step(4)
    with pytest.raises(GraphError, match="input block is"):
        interpret(graph, live=Live(), weights=decoder().weights())
    with pytest.raises(GraphError, match="wants weight"):
        interpret(graph, live=Live(), inputs={"block": torch.zeros(20, dtype=torch.int32)})
    with pytest.raises(GraphError, match=r"input block is i32\[20\], not \(21,\)"):
        interpret(graph, live=Live(), inputs={"block": torch.zeros(21, dtype=torch.int32)}, weights=decoder().weights())
