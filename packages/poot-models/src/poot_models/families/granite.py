"""Granite 3, dense: Llama's layer with multipliers on the embedding, the scores, each part and the logits."""

from __future__ import annotations

from dataclasses import replace

from poot_executor.ir import Value
from poot_models.blocks import DecoderBuilder, DecoderConfig
from poot_models.errors import UnsupportedArchitectureError
from poot_models.families import llama
from poot_models.families.family import Family
from poot_models.families.fields import Fields


def configure(fields: Fields) -> DecoderConfig:
    if fields.raw("", "rope.scaling.finetuned") is False:
        raise UnsupportedArchitectureError("Granite without rotary embedding is not supported")
    config = llama.configure(fields)
    scale = config.query_scale if fields.gguf else 1.0
    return replace(
        config,
        embed_scale=fields.number("embedding_multiplier", "embedding_scale", 1.0),
        residual_scale=fields.number("residual_multiplier", "residual_scale", 1.0),
        query_scale=fields.number("attention_multiplier", "attention.scale", scale),
        logit_scale=1.0 / fields.number("logits_scaling", "logit_scale", 1.0),
    )


def layer(b: DecoderBuilder, index: int, h: Value) -> Value:
    name, hidden = f"blk.{index}.", b.config.hidden
    attended = b.attention(index, b.norm(h, f"{name}attn_norm"))
    h = b.residual(h, b.linear(attended, (f"{name}attn_output", hidden)))
    x = b.norm(h, f"{name}ffn_norm")
    x = b.gated(x, f"{name}ffn_gate", f"{name}ffn_up", b.config.layers[index].ff)
    return b.residual(h, b.linear(x, (f"{name}ffn_down", hidden)))


FAMILY = Family("granite", configure, layer, llama.FAMILY.tensors)
