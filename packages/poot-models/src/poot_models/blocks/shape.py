"""Sizes of a prepared decoder: its KV groups and the capacities of its graphs."""

from __future__ import annotations

from dataclasses import dataclass

from poot_executor.programs import RowTableShape
from poot_models.blocks.config import DecoderConfig


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers that share a block table: those of one window and one KV shape."""

    name: str
    layers: tuple[int, ...]
    kv_heads: int
    head_dim: int
    window: int | None

    def blocks_per_row(self, max_seq: int, block: int, chunk: int) -> int:
        """Blocks that a row of `max_seq` positions needs when a step appends at most `chunk` to it.

        A window group's table is a ring: it keeps the window and the chunk being written.
        """
        whole = -(-max_seq // block)
        if self.window is None:
            return whole
        return min(whole, -(-(self.window + chunk) // block) + 1)

    def block_elements(self, block: int) -> int:
        """Elements of keys and values of a block, over all layers."""
        return 2 * len(self.layers) * block * self.kv_heads * self.head_dim


def kv_groups(config: DecoderConfig) -> tuple[KvGroup, ...]:
    """The groups of a decoder, in the order of their first layers, which are those that have keys and values.

    A window that no position leaves is none.
    """
    kinds: dict[tuple[int | None, int, int], list[int]] = {}
    for index, layer in enumerate(config.layers):
        if not layer.kv_heads:
            continue
        window = layer.window if layer.window and layer.window < config.max_positions else None
        kinds.setdefault((window, layer.kv_heads, layer.head_dim), []).append(index)
    return tuple(
        KvGroup(f"window({window})" if window else "full", tuple(layers), kv_heads, head_dim, window)
        for (window, kv_heads, head_dim), layers in kinds.items()
    )


@dataclass(frozen=True, slots=True)
class StepShape:
    """Capacities of a step: flat tokens, rows, positions of a row; the KV block size, each group's pool and table.

    `pool_blocks` and `tables` are in the order of the model's groups; `tile` bounds the queries of one attention item,
    `splits` the items into which the keys of one may be cut.
    """

    tokens: int
    rows: int
    max_seq: int
    block: int
    pool_blocks: tuple[int, ...]
    tables: tuple[int, ...]
    tile: int = 128
    bias: int = 1024
    splits: int = 1

    @property
    def row_table(self) -> RowTableShape:
        return RowTableShape(self.rows, self.max_seq + 1, self.bias, self.tables)
