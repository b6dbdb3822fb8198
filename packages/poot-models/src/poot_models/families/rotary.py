"""Rotary frequencies as checkpoints state them, for both formats."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from poot_executor.ops import RotarySpec
from poot_models.errors import CheckpointFormatError, UnsupportedArchitectureError
from poot_models.families.fields import Fields, positive


def rotary(fields: Fields, dim: int, *, kind: str | None = None, theta: float = 10000.0) -> RotarySpec:
    """Frequencies of `dim` rotated columns.

    `kind` picks one of several rules of config.json's rope_parameters ("full_attention"); `theta` is the default base.
    Raises UnsupportedArchitectureError for a scaling rule that is not known.
    """
    if dim < 2 or dim % 2:
        raise CheckpointFormatError(f"rotary embedding needs an even number of columns, not {dim}")
    return _of_gguf(fields, dim, theta) if fields.gguf else _of_config(fields, dim, kind, theta)


def _of_gguf(fields: Fields, dim: int, theta: float) -> RotarySpec:
    base = fields.number("", "rope.freq_base", theta)
    scaling = fields.choice("", "rope.scaling.type", "none", ("none", "linear", "yarn", "longrope"))
    if scaling not in ("none", "linear"):
        raise UnsupportedArchitectureError(f"rope scaling {scaling!r} is not supported; none, linear and llama3 are")
    factor = fields.number("", "rope.scaling.factor", 1.0) if scaling == "linear" else 1.0
    spec = RotarySpec.plain(dim, base, factor)
    divisors = fields.tensors.get("rope_freqs.weight")
    if divisors is None:
        return spec
    from poot_executor.encodings.dequantise import dequantise

    if divisors.shape != (dim // 2,):
        raise CheckpointFormatError(f"rope_freqs.weight is {divisors.shape}, not ({dim // 2},)")
    factors = dequantise(divisors).tolist()
    if not all(math.isfinite(f) and f > 0 for f in factors):
        raise CheckpointFormatError("rope_freqs.weight must hold numbers above 0")
    pairs = zip(spec.inverse_frequencies, factors, strict=True)
    return replace(spec, inverse_frequencies=tuple(frequency / f for frequency, f in pairs))


def _of_config(fields: Fields, dim: int, kind: str | None, theta: float) -> RotarySpec:
    rules = fields.mapping("rope_parameters")
    if kind is not None and isinstance(rules.get(kind), Mapping):
        rules = rules[kind]
    if not rules:
        rules = fields.mapping("rope_scaling")
    base = positive(rules, "rope_theta", fields.number("rope_theta", "", theta))
    name = rules.get("rope_type", rules.get("type", "default"))
    if name in ("default", None):
        return RotarySpec.plain(dim, base)
    if name == "linear":
        return RotarySpec.plain(dim, base, positive(rules, "factor"))
    if name == "llama3":
        return _llama3(RotarySpec.plain(dim, base), rules)
    raise UnsupportedArchitectureError(f"rope scaling {name!r:.40} is not supported; default, linear and llama3 are")


def _llama3(spec: RotarySpec, rules: Mapping[str, Any]) -> RotarySpec:
    """Slow frequencies are divided by the factor, fast ones kept, those between interpolated (Llama 3.1)."""
    factor, original = positive(rules, "factor"), positive(rules, "original_max_position_embeddings")
    low, high = positive(rules, "low_freq_factor"), positive(rules, "high_freq_factor")
    if high <= low:
        raise CheckpointFormatError("rope scaling: high_freq_factor must be above low_freq_factor")
    scaled = []
    for frequency in spec.inverse_frequencies:
        turns = original * frequency / (2 * math.pi)
        smooth = min(1.0, max(0.0, (turns - low) / (high - low)))
        scaled.append(frequency * (smooth + (1 - smooth) / factor))
    return replace(spec, inverse_frequencies=tuple(scaled))
