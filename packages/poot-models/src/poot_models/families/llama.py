"""Llama (arXiv 2302.13971, 2407.21783) and what shares its layer: SmolLM2, Mistral and Ministral, whose windows it has
not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from poot_executor.ir import Value
from poot_models.blocks import DecoderBuilder, DecoderConfig, LayerSpec
from poot_models.families.family import DECODER_TENSORS, Family
from poot_models.families.fields import Fields
from poot_models.families.rotary import rotary, rotated_columns
from poot_models.families.windows import windows

# A layer's query heads, KV heads and feed-forward width.
Widths = tuple[int, int, int]


def configure(
    fields: Fields,
    *,
    eps: float | None = None,
    gated: bool = True,
    theta: float = 10000.0,
    kind: str | None = None,
    widths: Sequence[Widths] | None = None,
) -> DecoderConfig:
    """For other families too, which may say: `eps` if it is not under the name of that of RMS norms, whether
    feed-forward parts have a gate (then its activation is SiLU), the default base of the rotary frequencies and the
    kind of layer whose rule they follow, and the layers' widths if they are not stated as ever. No layer has a window.
    """
    layers = fields.layer_count()
    hidden = fields.integer("hidden_size", "embedding_length")
    widths = _widths(fields, layers) if widths is None else widths
    head_dim = fields.integer("head_dim", "attention.key_length", max(1, hidden // max(1, *(w[0] for w in widths))))
    if gated:
        fields.choice("hidden_act", "", "silu", ("silu",))
    # Files of the llama architecture order query and key rows for interleaved pairs.
    spec = rotary(fields, rotated_columns(fields, head_dim), kind=kind, theta=theta)
    return DecoderConfig(
        vocabulary=fields.vocabulary(),
        hidden=hidden,
        tied=fields.tied(False),
        max_positions=fields.integer("max_position_embeddings", "context_length"),
        eps=eps or fields.number("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
        layers=tuple(LayerSpec(heads, kv_heads, head_dim, ff, spec) for heads, kv_heads, ff in widths),
        activation="silu" if gated else None,
        rotary_style="interleaved" if fields.gguf else "half",
        query_scale=head_dim**-0.5,
    )


def configure_with_windows(fields: Fields) -> DecoderConfig:
    """All layers have the window, if one is stated. layer_types make any Mistral a Ministral, as in transformers."""
    config = configure(fields)
    kinds = fields.architecture in ("MistralForCausalLM", "MinistralForCausalLM")
    return with_windows(config, windows(fields, len(config.layers), lambda _: True, kinds=kinds))


def with_windows(config: DecoderConfig, sizes: Sequence[int | None]) -> DecoderConfig:
    layers = (replace(layer, window=window) for layer, window in zip(config.layers, sizes, strict=True))
    return replace(config, layers=tuple(layers))


def _configure(fields: Fields) -> DecoderConfig:
    return configure(fields) if fields.architecture == "LlamaForCausalLM" else configure_with_windows(fields)


def _widths(fields: Fields, layers: int) -> Sequence[Widths]:
    heads = fields.per_layer("num_attention_heads", "attention.head_count", layers)
    kv_heads = fields.per_layer("num_key_value_heads", "attention.head_count_kv", layers, list(heads))
    ff = fields.per_layer("intermediate_size", "feed_forward_length", layers)
    return tuple(zip(heads, kv_heads, ff, strict=True))


def layer(b: DecoderBuilder, index: int, h: Value) -> Value:
    name, hidden = f"blk.{index}.", b.config.hidden
    attended = b.attention(index, b.norm(h, f"{name}attn_norm"))
    h = b.add(h, b.linear(attended, (f"{name}attn_output", hidden)))
    x = b.norm(h, f"{name}ffn_norm")
    x = b.gated(x, f"{name}ffn_gate", f"{name}ffn_up", b.config.layers[index].ff)
    return b.add(h, b.linear(x, (f"{name}ffn_down", hidden)))


FAMILY = Family(
    "llama",
    _configure,
    layer,
    {**DECODER_TENSORS, "blk.{}.ffn_norm": "model.layers.{}.post_attention_layernorm"},
)
