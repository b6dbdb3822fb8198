"""Gemma 3, text (arXiv 2503.19786): windowed layers with one full layer in six, norms before and after each part."""

from __future__ import annotations

from functools import partial

from poot_executor.ops import RotarySpec
from poot_models.blocks import DecoderConfig, LayerSpec, Rotary
from poot_models.families import gemma2
from poot_models.families.family import Family
from poot_models.families.fields import Fields
from poot_models.families.rotary import rotary
from poot_models.families.windows import windows

_PATTERN = 6
_LOCAL_THETA = 10000.0
_GLOBAL_THETA = 1000000.0
_LAYERS_27B = 62  # the one size whose query scale follows from the hidden size; GGUF files do not say it


def configure(fields: Fields) -> DecoderConfig:
    layers = fields.layer_count()
    hidden = fields.integer("hidden_size", "embedding_length")
    heads = fields.integer("num_attention_heads", "attention.head_count")
    kv_heads = fields.integer("num_key_value_heads", "attention.head_count_kv", heads)
    head_dim = fields.integer("head_dim", "attention.key_length", 256)
    ff = fields.integer("intermediate_size", "feed_forward_length")
    sizes = windows(fields, layers, lambda index: (index + 1) % _PATTERN != 0, pattern=True)
    fields.choice("hidden_activation", "", "gelu_pytorch_tanh", ("gelu_pytorch_tanh",))
    wide = rotary(fields, head_dim, kind="full_attention", theta=_GLOBAL_THETA)
    narrow = _local_rotary(fields, head_dim)
    scalar = hidden // heads if layers == _LAYERS_27B else head_dim
    return DecoderConfig(
        vocabulary=fields.vocabulary(),
        hidden=hidden,
        tied=fields.tied(True),
        max_positions=fields.integer("max_position_embeddings", "context_length"),
        eps=fields.number("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
        layers=tuple(
            LayerSpec(heads, kv_heads, head_dim, ff, wide if window is None else narrow, window) for window in sizes
        ),
        activation="gelu_tanh",
        rotary_style="half",
        query_scale=(scalar if fields.gguf else fields.number("query_pre_attn_scalar", "")) ** -0.5,
        # GGUF files store norm weights with the one added.
        norm_offset=0.0 if fields.gguf else 1.0,
        embed_scale=hidden**0.5,
        logit_softcap=fields.optional_number("final_logit_softcapping", "final_logit_softcapping"),
    )


def _local_rotary(fields: Fields, head_dim: int) -> Rotary:
    """Windowed layers scale no positions, unless rope_parameters has a rule of theirs."""
    if fields.gguf:
        return RotarySpec.plain(head_dim, fields.number("", "rope.freq_base_swa", _LOCAL_THETA))
    return rotary(fields, head_dim, kind="sliding_attention", theta=_LOCAL_THETA, base="rope_local_base_freq")


FAMILY = Family(
    "gemma3",
    configure,
    partial(gemma2.layer, qk_norm=True),
    {
        **gemma2.TENSORS,
        "blk.{}.attn_q_norm": "model.layers.{}.self_attn.q_norm",
        "blk.{}.attn_k_norm": "model.layers.{}.self_attn.k_norm",
    },
)
