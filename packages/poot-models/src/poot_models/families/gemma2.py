"""Gemma 2 (arXiv 2408.00118): every other layer windowed, norms before and after each part, soft-capped scores."""

from __future__ import annotations

from poot_executor.ir import Value
from poot_models.blocks import DecoderBuilder, DecoderConfig, LayerSpec
from poot_models.families.family import DECODER_TENSORS, Family
from poot_models.families.fields import Fields
from poot_models.families.rotary import rotary
from poot_models.families.windows import windows

# What GGUF files mean where they do not say.
_WINDOW = 4096
_ATTENTION_CAP = 50.0
_LOGIT_CAP = 30.0
_LAYERS_27B = 46  # the one size whose query scale follows from the hidden size; GGUF files do not say it


def configure(fields: Fields) -> DecoderConfig:
    layers = fields.layer_count()
    hidden = fields.integer("hidden_size", "embedding_length")
    heads = fields.integer("num_attention_heads", "attention.head_count")
    kv_heads = fields.integer("num_key_value_heads", "attention.head_count_kv", heads)
    head_dim = fields.integer("head_dim", "attention.key_length", 256)
    ff = fields.integer("intermediate_size", "feed_forward_length")
    fields.choice("hidden_activation", "", "gelu_pytorch_tanh", ("gelu_pytorch_tanh",))
    turned = rotary(fields, head_dim)
    scalar = hidden // heads if layers == _LAYERS_27B else head_dim
    attention_cap = fields.optional_number("attn_logit_softcapping", "attn_logit_softcapping")
    logit_cap = fields.optional_number("final_logit_softcapping", "final_logit_softcapping")
    every_other = windows(fields, layers, lambda index: index % 2 == 0, window=_WINDOW)
    return DecoderConfig(
        vocabulary=fields.vocabulary(),
        hidden=hidden,
        tied=fields.tied(True),
        max_positions=fields.integer("max_position_embeddings", "context_length"),
        eps=fields.number("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
        layers=tuple(LayerSpec(heads, kv_heads, head_dim, ff, turned, window) for window in every_other),
        activation="gelu_tanh",
        rotary_style="half",
        query_scale=(scalar if fields.gguf else fields.number("query_pre_attn_scalar", "")) ** -0.5,
        # GGUF files store norm weights with the one added.
        norm_offset=0.0 if fields.gguf else 1.0,
        embed_scale=hidden**0.5,
        attention_softcap=_ATTENTION_CAP if fields.gguf and attention_cap is None else attention_cap,
        logit_softcap=_LOGIT_CAP if fields.gguf and logit_cap is None else logit_cap,
    )


# Beside what all decoders have; Gemma 3 has them too.
TENSORS = {
    **DECODER_TENSORS,
    "blk.{}.post_attention_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_norm": "model.layers.{}.pre_feedforward_layernorm",
    "blk.{}.post_ffw_norm": "model.layers.{}.post_feedforward_layernorm",
}


def layer(b: DecoderBuilder, index: int, h: Value, *, qk_norm: bool = False) -> Value:
    """Norms before and after each part; `qk_norm` is Gemma 3's addition."""
    name, hidden = f"blk.{index}.", b.config.hidden
    x = b.attention(index, b.norm(h, f"{name}attn_norm"), qk_norm=qk_norm)
    x = b.linear(x, (f"{name}attn_output", hidden))
    h = b.add(h, b.norm(x, f"{name}post_attention_norm"))
    x = b.norm(h, f"{name}ffn_norm")
    x = b.gated(x, f"{name}ffn_gate", f"{name}ffn_up", b.config.layers[index].ff)
    x = b.linear(x, (f"{name}ffn_down", hidden))
    return b.add(h, b.norm(x, f"{name}post_ffw_norm"))


FAMILY = Family("gemma2", configure, layer, TENSORS)
