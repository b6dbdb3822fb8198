"""OLMo 2 (arXiv 2501.00656) and OLMo 3: norms after each part, queries and keys normed over all heads; OLMo 3 has
windowed layers, whose positions are never scaled, and a full one in four."""

from __future__ import annotations

from dataclasses import replace

from poot_executor.ir import Value
from poot_executor.ops import RotarySpec
from poot_models.blocks import DecoderBuilder, DecoderConfig, Rotary
from poot_models.families import llama
from poot_models.families.family import DECODER_TENSORS, Family
from poot_models.families.fields import Fields
from poot_models.families.rotary import rotary
from poot_models.families.windows import windows

_PATTERN = 4
_THETA = 10000.0
_THETA_3 = 500000.0


def configure(fields: Fields) -> DecoderConfig:
    if fields.architecture == "Olmo2ForCausalLM":
        return replace(llama.configure(fields, theta=_THETA), rotary_style="half")
    # GGUF files give both one name.
    config = llama.configure(fields, kind="full_attention", theta=_THETA if fields.gguf else _THETA_3)
    narrow = _local_rotary(fields, config.layers[0].head_dim)
    sizes = windows(fields, len(config.layers), lambda index: (index + 1) % _PATTERN != 0)
    layers = tuple(
        replace(layer, window=window, rotary=layer.rotary if window is None else narrow)
        for layer, window in zip(config.layers, sizes, strict=True)
    )
    return replace(config, layers=layers, rotary_style="half")


def _local_rotary(fields: Fields, head_dim: int) -> Rotary:
    if fields.gguf:
        base = fields.number("", "rope.freq_base", _THETA)
        return RotarySpec.plain(head_dim, fields.number("", "rope.freq_base_swa", base))
    # transformers reads rope_theta for the full layers only.
    return rotary(fields, head_dim, kind="sliding_attention", theta=_THETA_3, base="")


def layer(b: DecoderBuilder, index: int, h: Value) -> Value:
    name, hidden = f"blk.{index}.", b.config.hidden
    x = b.linear(b.attention(index, h, wide_norm=True), (f"{name}attn_output", hidden))
    h = b.add(h, b.norm(x, f"{name}post_attention_norm"))
    x = b.gated(h, f"{name}ffn_gate", f"{name}ffn_up", b.config.layers[index].ff)
    x = b.linear(x, (f"{name}ffn_down", hidden))
    return b.add(h, b.norm(x, f"{name}post_ffw_norm"))


FAMILY = Family(
    "olmo2",
    configure,
    layer,
    {
        **DECODER_TENSORS,
        "blk.{}.attn_q_norm": "model.layers.{}.self_attn.q_norm",
        "blk.{}.attn_k_norm": "model.layers.{}.self_attn.k_norm",
        "blk.{}.post_attention_norm": "model.layers.{}.post_attention_layernorm",
        "blk.{}.post_ffw_norm": "model.layers.{}.post_feedforward_layernorm",
    },
)
