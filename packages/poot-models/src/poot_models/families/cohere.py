"""Command R (Cohere): layer norms, attention and feed-forward part side by side on one norm, scaled logits."""

from __future__ import annotations

from dataclasses import replace

from poot_executor.ir import Value
from poot_models.blocks import DecoderBuilder, DecoderConfig
from poot_models.errors import CheckpointFormatError
from poot_models.families import llama
from poot_models.families.family import DECODER_TENSORS, Family
from poot_models.families.fields import Fields

_THETA = 500000.0
_LOGIT_SCALE = 0.0625
_NORMED = "blk.0.attn_q_norm.weight"


def configure(fields: Fields) -> DecoderConfig:
    return configured(fields, _THETA)


def configured(fields: Fields, theta: float) -> DecoderConfig:
    """For Cohere 2 too, whose default base `theta` is another."""
    config = llama.configure(fields, eps=fields.number("layer_norm_eps", "attention.layer_norm_epsilon"), theta=theta)
    normed = fields.raw("use_qk_norm", "")
    if normed is not None and bool(normed) is not (_NORMED in fields.tensors):
        has = "has" if _NORMED in fields.tensors else "has not"
        raise CheckpointFormatError(f"use_qk_norm is {normed!r:.40}, but the checkpoint {has} {_NORMED}")
    return replace(
        config,
        # The first one's max_position_embeddings is that of its pretraining.
        max_positions=fields.integer("model_max_length", "", config.max_positions),
        tied=fields.tied(True),
        norm="layer",
        # In both formats: its rotary pairs are neighbours in transformers too.
        rotary_style="interleaved",
        logit_scale=fields.number("logit_scale", "logit_scale", _LOGIT_SCALE),
    )


def layer(b: DecoderBuilder, index: int, h: Value) -> Value:
    name, hidden = f"blk.{index}.", b.config.hidden
    x = b.norm(h, f"{name}attn_norm")
    attended = b.linear(b.attention(index, x, qk_norm=b.has(_NORMED)), (f"{name}attn_output", hidden))
    x = b.gated(x, f"{name}ffn_gate", f"{name}ffn_up", b.config.layers[index].ff)
    return b.add(b.add(h, attended), b.linear(x, (f"{name}ffn_down", hidden)))


FAMILY = Family(
    "cohere",
    configure,
    layer,
    {
        **DECODER_TENSORS,
        "blk.{}.attn_q_norm": "model.layers.{}.self_attn.q_norm",
        "blk.{}.attn_k_norm": "model.layers.{}.self_attn.k_norm",
    },
)
