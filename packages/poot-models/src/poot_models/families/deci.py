"""DeciLM and what Puzzle made of Llama 3 (Llama Nemotron; arXiv 2411.19146): Llama's layers, no two of which need have
the same widths; some have a product in place of attention, some no attention or no feed-forward part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from poot_executor.ir import Value
from poot_models.blocks import DecoderBuilder, DecoderConfig
from poot_models.errors import CheckpointFormatError, UnsupportedArchitectureError
from poot_models.families import llama
from poot_models.families.family import Family
from poot_models.families.fields import Fields

_MULTIPLE = 256  # what feed-forward widths are rounded up to


def configure(fields: Fields) -> DecoderConfig:
    layers = fields.layer_count()
    blocks = fields.raw("block_configs", "")
    widths = _uniform(fields, layers) if blocks is None else _puzzle(fields, layers, blocks)
    if not any(kv_heads for _, kv_heads, _ in widths):
        raise CheckpointFormatError("no layer of the model has attention")
    return llama.configure(fields, widths=widths)


def _uniform(fields: Fields, layers: int) -> Sequence[llama.Widths]:
    """Of GGUF files, where zeros say what a layer lacks, and of DeciLM-7B."""
    heads = fields.per_layer("num_attention_heads", "attention.head_count", layers, low=0)
    stated = fields.raw("num_key_value_heads_per_layer", "")
    kv_name = "num_key_value_heads" if stated is None else "num_key_value_heads_per_layer"
    kv_heads = fields.per_layer(kv_name, "attention.head_count_kv", layers, low=0)
    ff = fields.per_layer("intermediate_size", "feed_forward_length", layers, low=0)
    if any(kv and not queries for queries, kv in zip(heads, kv_heads, strict=True)):
        raise CheckpointFormatError("a layer has KV heads, but no query heads")
    return tuple(zip(heads, kv_heads, ff, strict=True))


def _puzzle(fields: Fields, layers: int, blocks: Any) -> Sequence[llama.Widths]:
    """Of config.json's block_configs."""
    if not isinstance(blocks, list) or len(blocks) != layers:
        raise CheckpointFormatError(f"block_configs must be a list of {layers} objects, one a layer")
    heads = fields.integer("num_attention_heads", "")
    hidden = fields.integer("hidden_size", "")
    found = []
    for index, block in enumerate(blocks):
        parts = [block.get(name) if isinstance(block, Mapping) else None for name in ("attention", "ffn")]
        attention, ffn = (part if isinstance(part, Mapping) else {} for part in parts)
        found.append((*_heads(index, attention, heads), _width(index, ffn, hidden)))
    return tuple(found)


def _heads(index: int, attention: Mapping[str, Any], heads: int) -> tuple[int, int]:
    """Heads and KV heads of a layer; without KV heads it has a plain product, without heads nothing."""
    if attention.get("no_op") is True:
        return 0, 0
    if attention.get("replace_with_linear") is True:
        return heads, 0
    group = attention.get("n_heads_in_group", 0)
    if group is None:
        return 0, 0
    if isinstance(group, bool) or not isinstance(group, int) or group < 1 or heads % group:
        raise CheckpointFormatError(
            f"block_configs[{index}]: attention.n_heads_in_group must divide {heads} heads, not be {group!r:.40}"
        )
    return heads, heads // group


def _width(index: int, ffn: Mapping[str, Any], hidden: int) -> int:
    if ffn.get("no_op") is True:
        return 0
    if ffn.get("replace_with_linear") is True:
        raise UnsupportedArchitectureError(f"block_configs[{index}]: a plain product in place of ffn is not supported")
    factor = ffn.get("ffn_mult", 0)
    if factor is None:
        return 0
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < _MULTIPLE:
        raise CheckpointFormatError(
            f"block_configs[{index}]: ffn.ffn_mult must be a number above 0 and below {_MULTIPLE}, not {factor!r:.40}"
        )
    return -(-int(2 * factor * hidden / 3) // _MULTIPLE) * _MULTIPLE


def layer(b: DecoderBuilder, index: int, h: Value) -> Value:
    spec, name, hidden = b.config.layers[index], f"blk.{index}.", b.config.hidden
    if spec.heads:
        x, product = b.norm(h, f"{name}attn_norm"), f"{name}attn_output"
        if spec.kv_heads:
            x = b.attention(index, x)
        elif b.has(f"{name}attn_linear.weight"):
            product = f"{name}attn_linear"
        h = b.add(h, b.linear(x, (product, hidden)))
    if spec.ff:
        x = b.norm(h, f"{name}ffn_norm")
        x = b.gated(x, f"{name}ffn_gate", f"{name}ffn_up", spec.ff)
        h = b.add(h, b.linear(x, (f"{name}ffn_down", hidden)))
    return h


FAMILY = Family(
    "deci",
    configure,
    layer,
    # GGUF files call a product in place of attention attn_output.
    {**llama.FAMILY.tensors, "blk.{}.attn_linear": "model.layers.{}.self_attn.linear_attn"},
)
