"""StarCoder 2 (arXiv 2402.19173): layer norms and products with biases, and a feed-forward part without a gate."""

from __future__ import annotations

from dataclasses import replace

from poot_executor.ir import Value
from poot_executor.ops import Gelu
from poot_models.blocks import DecoderBuilder, DecoderConfig
from poot_models.families import llama
from poot_models.families.family import DECODER_TENSORS, Family
from poot_models.families.fields import Fields
from poot_models.families.windows import windows

_WINDOW = 4096  # of all models of the paper; GGUF files do not say it


def configure(fields: Fields) -> DecoderConfig:
    config = llama.configure(fields, eps=fields.number("norm_epsilon", "attention.layer_norm_epsilon"), gated=False)
    named = fields.choice("hidden_act", "", "gelu_pytorch_tanh", ("gelu_pytorch_tanh", "gelu_new", "gelu"))
    between = Gelu("erf" if named == "gelu" else "tanh")
    sizes = windows(fields, len(config.layers), lambda _: True, window=_WINDOW, kinds=False)
    layers = tuple(
        replace(layer, window=window, between=between) for layer, window in zip(config.layers, sizes, strict=True)
    )
    return replace(config, layers=layers, tied=fields.tied(True), norm="layer+bias", rotary_style="half")


def layer(b: DecoderBuilder, index: int, h: Value) -> Value:
    name, hidden = f"blk.{index}.", b.config.hidden
    attended = b.attention(index, b.norm(h, f"{name}attn_norm"))
    h = b.add(h, b.linear(attended, (f"{name}attn_output", hidden)))
    x = b.ungated(index, b.norm(h, f"{name}ffn_norm"), f"{name}ffn_up")
    return b.add(h, b.linear(x, (f"{name}ffn_down", hidden)))


FAMILY = Family(
    "starcoder2",
    configure,
    layer,
    {
        **DECODER_TENSORS,
        "blk.{}.ffn_norm": "model.layers.{}.post_attention_layernorm",
        "blk.{}.ffn_up": "model.layers.{}.mlp.c_fc",
        "blk.{}.ffn_down": "model.layers.{}.mlp.c_proj",
    },
)
