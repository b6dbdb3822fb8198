"""GLM-4-0414, dense: norms before and after each part as in Gemma 2, half of each head rotated in interleaved pairs."""

from __future__ import annotations

from dataclasses import replace

from poot_models.blocks import DecoderConfig
from poot_models.errors import UnsupportedArchitectureError
from poot_models.families import gemma2, llama
from poot_models.families.family import DECODER_TENSORS, Family
from poot_models.families.fields import Fields
from poot_models.families.rotary import rotary, rotated_columns


def configure(fields: Fields) -> DecoderConfig:
    if fields.raw("", "rope.dimension_sections") is not None or fields.raw("", "nextn_predict_layers"):
        raise UnsupportedArchitectureError("of GLM-4 only the text models are supported, not those for images")
    config = llama.configure(fields)
    turned = rotary(fields, rotated_columns(fields, config.layers[0].head_dim, 0.5))
    layers = tuple(replace(layer, rotary=turned) for layer in config.layers)
    return replace(config, layers=layers, rotary_style="interleaved")


FAMILY = Family(
    "glm4",
    configure,
    gemma2.layer,
    {
        **DECODER_TENSORS,
        "blk.{}.post_attention_norm": "model.layers.{}.post_self_attn_layernorm",
        "blk.{}.ffn_norm": "model.layers.{}.post_attention_layernorm",
        "blk.{}.ffn_up": "model.layers.{}.mlp.gate_up_proj",
        "blk.{}.post_ffw_norm": "model.layers.{}.post_mlp_layernorm",
    },
)
