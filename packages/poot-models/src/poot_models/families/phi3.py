"""Phi-3 and Phi-4 (arXiv 2404.14219, 2412.08905, 2503.01743): Llama's layer from fused tensors; Phi-4-mini rotates
only a part of each head."""

from __future__ import annotations

from dataclasses import replace

from poot_models.blocks import DecoderConfig
from poot_models.families import llama
from poot_models.families.family import Family
from poot_models.families.fields import Fields


def configure(fields: Fields) -> DecoderConfig:
    return replace(llama.configure_with_windows(fields), rotary_style="half")


FAMILY = Family(
    "phi3",
    configure,
    llama.layer,
    {
        **llama.FAMILY.tensors,
        "blk.{}.attn_qkv": "model.layers.{}.self_attn.qkv_proj",
        "blk.{}.ffn_up": "model.layers.{}.mlp.gate_up_proj",
    },
)
