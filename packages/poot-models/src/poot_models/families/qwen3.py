"""Qwen3, dense (arXiv 2505.09388): Llama's layer with queries and keys normed per head."""

from __future__ import annotations

from poot_executor.ir import Value
from poot_models.blocks import DecoderBuilder, DecoderConfig, LayerSpec
from poot_models.errors import UnsupportedArchitectureError
from poot_models.families.family import DECODER_TENSORS, Family
from poot_models.families.fields import Fields
from poot_models.families.rotary import rotary


def configure(fields: Fields) -> DecoderConfig:
    if fields.flag("use_sliding_window"):
        raise UnsupportedArchitectureError("Qwen3 with use_sliding_window is not supported")
    layers = fields.layer_count()
    hidden = fields.integer("hidden_size", "embedding_length")
    heads = fields.integer("num_attention_heads", "attention.head_count")
    head_dim = fields.integer("head_dim", "attention.key_length", max(1, hidden // heads))
    fields.choice("hidden_act", "", "silu", ("silu",))
    spec = LayerSpec(
        heads,
        fields.integer("num_key_value_heads", "attention.head_count_kv", heads),
        head_dim,
        fields.integer("intermediate_size", "feed_forward_length"),
        rotary(fields, head_dim),
    )
    return DecoderConfig(
        vocabulary=fields.vocabulary(),
        hidden=hidden,
        tied=fields.tied(False),
        max_positions=fields.integer("max_position_embeddings", "context_length"),
        eps=fields.number("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
        layers=(spec,) * layers,
        activation="silu",
        rotary_style="half",
        query_scale=head_dim**-0.5,
    )


def layer(b: DecoderBuilder, index: int, h: Value) -> Value:
    name, hidden = f"blk.{index}.", b.config.hidden
    attended = b.attention(index, b.norm(h, f"{name}attn_norm"), qk_norm=True)
    h = b.add(h, b.linear(attended, (f"{name}attn_output", hidden)))
    x = b.norm(h, f"{name}ffn_norm")
    x = b.gated(x, f"{name}ffn_gate", f"{name}ffn_up", b.config.layers[index].ff)
    return b.add(h, b.linear(x, (f"{name}ffn_down", hidden)))


FAMILY = Family(
    "qwen3",
    configure,
    layer,
    {
        **DECODER_TENSORS,
        "blk.{}.attn_q_norm": "model.layers.{}.self_attn.q_norm",
        "blk.{}.attn_k_norm": "model.layers.{}.self_attn.k_norm",
        "blk.{}.ffn_norm": "model.layers.{}.post_attention_layernorm",
    },
)
