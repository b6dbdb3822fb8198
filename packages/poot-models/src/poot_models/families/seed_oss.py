"""Seed-OSS: Llama's layer with biases on queries, keys and values, and a head size of its own."""

from __future__ import annotations

from dataclasses import replace

from poot_executor.ir import Value
from poot_models.blocks import DecoderBuilder, DecoderConfig
from poot_models.families import llama
from poot_models.families.family import DECODER_TENSORS, Family
from poot_models.families.fields import Fields


def configure(fields: Fields) -> DecoderConfig:
    return replace(llama.configure(fields), rotary_style="half")


def layer(b: DecoderBuilder, index: int, h: Value) -> Value:
    name, hidden = f"blk.{index}.", b.config.hidden
    attended = b.attention(index, b.norm(h, f"{name}attn_norm"))
    h = b.add(h, b.linear(attended, (f"{name}attn_output", hidden)))
    # GGUF files name the norm before the second part after the first.
    x = b.norm(h, f"{name}post_attention_norm")
    x = b.gated(x, f"{name}ffn_gate", f"{name}ffn_up", b.config.layers[index].ff)
    return b.add(h, b.linear(x, (f"{name}ffn_down", hidden)))


FAMILY = Family(
    "seed_oss",
    configure,
    layer,
    {**DECODER_TENSORS, "blk.{}.post_attention_norm": "model.layers.{}.post_attention_layernorm"},
)
