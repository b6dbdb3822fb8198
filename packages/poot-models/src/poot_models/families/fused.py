"""Tensors that hold several weights one after the other, as views of their rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from poot_executor.encodings import WeightSource
from poot_executor.errors import EncodingError
from poot_models.blocks import DecoderConfig
from poot_models.errors import CheckpointFormatError


def split_fused(tensors: Mapping[str, WeightSource], config: DecoderConfig) -> dict[str, WeightSource]:
    """`attn_qkv` as attn_q, attn_k and attn_v; `ffn_up` of twice the width as ffn_gate and ffn_up, where a layer has a
    gate and the checkpoint none.

    Nothing is copied. Raises CheckpointFormatError for an attn_qkv that is not as long as its parts.
    """
    result = dict(tensors)
    for index, spec in enumerate(config.layers):
        prefix = f"blk.{index}."
        q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
        for kind in ("weight", "bias"):
            qkv = result.pop(f"{prefix}attn_qkv.{kind}", None)
            if qkv is not None:
                result |= _parts(qkv, {f"{prefix}attn_{n}.{kind}": w for n, w in (("q", q), ("k", kv), ("v", kv))})
            gate, up = f"{prefix}ffn_gate.{kind}", f"{prefix}ffn_up.{kind}"
            gated = spec.between is None and gate not in result
            if gated and up in result and result[up].shape[0] == 2 * spec.ff:
                result |= _parts(result[up], {gate: spec.ff, up: spec.ff})
    return result


def _parts(source: WeightSource, widths: Mapping[str, int]) -> dict[str, WeightSource]:
    if not source.shape or source.shape[0] != sum(widths.values()):
        raise CheckpointFormatError(
            f"tensor {source.name} is {source.shape}; the configuration says {sum(widths.values())} rows"
        )
    parts: dict[str, WeightSource] = {}
    at = 0
    for name, count in widths.items():
        try:
            part = source.rows(at, at + count)
        except EncodingError as error:
            raise CheckpointFormatError(str(error)) from error
        parts[name] = replace(part, name=f"{source.name}[{at}:{at + count}]")
        at += count
    return parts
