"""From a model and wishes to prepared programs: fit first, then allocate."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations

from poot_batch.request.params import MAX_LOGIT_BIAS, MAX_LOGPROBS
from poot_executor.devices import Device
from poot_executor.ir import Graph
from poot_executor.memory import Demand, Fit, Pool, fit
from poot_executor.programs import FULL, LOGPROBS, PENALTIES, open_graph, recall_graph, sample_graph
from poot_executor.runtime import Compiled, EntryKey, EntrySet, compile_graphs, prepare, state_types
from poot_executor.runtime.prepare import Progress
from poot_models import ModelHandle
from poot_models.blocks import StepShape

BLOCK = 16
# Prompt tokens that a step scores at most: the arena holds the logits of all of them.
SCORE_TOKENS = 64
# KV blocks of a group at most, beyond what the rows need, on a device with memory of its own: what has been run is kept
# there to be found again. More of them would make admission slow. On the CPU the rest is left to other programs.
KEPT_BLOCKS = 2**17
# Rows of a product up to which it takes as long as its weights take to read.
_BOUND_BY_WEIGHTS = 64
# What a sample entry may be asked for: every set has its entries.
_FEATURES = tuple(
    frozenset(chosen) for count in range(4) for chosen in combinations((FULL, PENALTIES, LOGPROBS), count)
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model that is ready to run, and what was settled on."""

    device: Device
    model: ModelHandle
    entries: EntrySet
    shape: StepShape
    fit: Fit


def prepare_model(
    model: ModelHandle,
    device: Device,
    *,
    rows: int,
    max_seq: int,
    ends: tuple[int, ...],
    step_tokens: int | None = None,
    progress: Progress = lambda phase, done, total: None,
) -> Prepared:
    """Fit the workload to the device, then prepare every entry.

    `rows` and `max_seq` are wishes: the fit may halve them, and the model's own limit caps the length. `ends` are the
    tokens that end a text, `step_tokens` the tokens of one step at most, by default what suits the device. Raises
    CapacityError before anything is allocated.
    """
    step_tokens = step_tokens or most_tokens(device)
    capacity = device.capacity()
    limit = min(max_seq, model.max_positions)
    # The workload that the fit asked for last, which is the one that it settles on.
    asked: list[Compiled] = []

    def demand(rows: int, max_seq: int) -> Demand:
        shape = _shape(model, device, rows, max_seq, step_tokens)
        compiled = compile_graphs(device, _graphs(model, device, shape, ends))
        asked[:] = [compiled]
        pools = tuple(
            Pool(group.name, group.block_elements(BLOCK) * device.activation.size, table)
            for group, table in zip(model.groups, shape.tables, strict=True)
        )
        return Demand(compiled.weights, compiled.arena, compiled.state_bytes("rows"), compiled.staging, 0, pools)

    kept = KEPT_BLOCKS if device.own_memory else 0
    with _no_collection():
        found = fit(rows, limit, capacity, demand, f"{device.backend} ({device.name})", most_blocks=kept)
        shape = replace(_shape(model, device, found.rows, found.max_seq, step_tokens), pool_blocks=found.blocks)
        # Only the pools have another size than they were compiled with; any step names them all.
        compiled = asked[0].with_states(state_types(model.step(replace(shape, tokens=1)), device.activation))
        return Prepared(device, model, prepare(device, compiled, model.weights, progress), shape, found)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Nothing is looked through for garbage but once: graphs and entries are a million objects, nearly all of which
    stay, and would be looked through several times while they are made, and twice more while steps run."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.collect()
            gc.enable()


def most_tokens(device: Device) -> int:
    """Tokens of one step at most: a device that records has products that want many rows, a CPU has enough of fewer."""
    return 2048 if device.records else 512


def prompt_step_ms(device: Device) -> float:
    """How long a step with parts of prompts may be while rows wait for their next token: on a device that records,
    about what the largest step takes at a short context."""
    return 60.0 if device.records else 150.0


def _shape(model: ModelHandle, device: Device, rows: int, max_seq: int, step_tokens: int) -> StepShape:
    """With pools of one sequence of full length: the fit says how large they may be."""
    tokens = max(rows, min(step_tokens, rows * max_seq))
    tables = tuple(group.blocks_per_row(max_seq, BLOCK, tokens) for group in model.groups)
    return StepShape(tokens, rows, max_seq, BLOCK, tables, tables, bias=MAX_LOGIT_BIAS)


def _of_tokens(model: ModelHandle, device: Device, shape: StepShape, tokens: int) -> StepShape:
    """The shape of an entry of this capacity, its attention's items as the device wants them."""
    share = max((layer.heads // layer.kv_heads for layer in model.config.layers if layer.kv_heads), default=1)
    width = max((layer.head_dim for layer in model.config.layers if layer.kv_heads), default=1)
    return replace(shape, tokens=tokens, tile=device.tile(tokens, share), splits=device.splits(tokens, width))


def ladder(device: Device, shape: StepShape) -> tuple[int, ...]:
    """Capacities of the step entries.

    A recording runs its whole capacity, so a recording device gets a fine ladder, the finest as far as all rows may
    decode; one that does only the live work needs an entry for decoding and one for prompts.
    """
    if not device.records:
        return tuple(sorted({min(shape.rows, shape.tokens), shape.tokens}))
    steps = {1, 2, 4, *range(8, 65, 8), *range(80, 385, 16), *range(448, 769, 64), *range(896, 2049, 128)}
    steps |= {step for step in range(72, 257, 8) if step < shape.rows + 8}
    return (*sorted(step for step in steps if step < shape.tokens), shape.tokens)


def sample_ladder(device: Device, rows: int) -> tuple[int, ...]:
    """Capacities of the sample entries: powers of two where a recording runs its whole capacity."""
    steps = [2**i for i in range(rows.bit_length())] if device.records else []
    return (*(step for step in steps if step < rows), rows)


def head_ladder(device: Device, rows: int) -> tuple[int, ...]:
    """The same of the head entries. From where their product is no longer bound by its weights there are more: of 136
    rows of an 8B decoder it takes 80 us less as one of 192 than as one of 256, on an H200."""
    found = sample_ladder(device, rows)
    between = [3 * step // 2 for step in found if device.records and _BOUND_BY_WEIGHTS <= step < 2 * rows // 3]
    return tuple(sorted({*found, *between}))


def _graphs(model: ModelHandle, device: Device, shape: StepShape, ends: tuple[int, ...]) -> Mapping[EntryKey, Graph]:
    """Every entry of a generative model."""
    graphs: dict[EntryKey, Graph] = {
        EntryKey("open", 1): open_graph(shape.row_table),
        EntryKey("recall", shape.tokens): recall_graph(shape.row_table, shape.tokens),
    }
    for tokens in ladder(device, shape):
        graphs[EntryKey("step", tokens)] = model.step(_of_tokens(model, device, shape, tokens))
    top = min(MAX_LOGPROBS, model.vocab_size)
    tokens = min(SCORE_TOKENS, shape.tokens)
    graphs[EntryKey("score", tokens)] = model.score(_of_tokens(model, device, shape, tokens), top)
    for rows in head_ladder(device, shape.rows):
        graphs[EntryKey("head", rows)] = model.head(rows, shape)
    for rows in sample_ladder(device, shape.rows):
        for features in _FEATURES:
            graphs[EntryKey("sample", rows, features)] = sample_graph(
                shape.row_table, rows, model.vocab_size, features, ends=ends, top=top
            )
    return graphs
