"""Rotary frequencies as checkpoints state them, for both formats."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from poot_executor.ops import RotarySpec
from poot_models.blocks import LongRotary, Rotary
from poot_models.encodings.vectors import numbers
from poot_models.errors import CheckpointFormatError, UnsupportedArchitectureError
from poot_models.families.fields import Fields, positive

_KNOWN = "default, linear, dynamic, llama3, yarn and longrope"


_ORIGINAL = "original_max_position_embeddings"
# Those whose layers can leave some columns of a head as they are.
_PARTIAL = ("Phi3ForCausalLM", "Glm4ForCausalLM")


def rotary(
    fields: Fields, dim: int, *, kind: str | None = None, theta: float = 10000.0, base: str = "rope_theta"
) -> Rotary:
    """Frequencies of `dim` rotated columns.

    `kind` picks one of several rules of config.json's rope_parameters ("full_attention"); `theta` is the default base,
    `base` the field of config.json that may state another outside the rules ("" for none).
    Raises UnsupportedArchitectureError for a scaling rule that is not known, or that the reference cannot run.
    """
    if dim < 2 or dim % 2:
        raise CheckpointFormatError(f"rotary embedding needs an even number of columns, not {dim}")
    if fields.gguf:
        return _of_gguf(fields, dim, theta)
    rules = rope_rules(fields, kind)
    return _of_config(fields, dim, rules, positive(rules, "rope_theta", fields.number(base, "", theta)))


def rope_rules(fields: Fields, kind: str | None = None) -> Mapping[str, Any]:
    """config.json's rules: rope_scaling, which older ones have, comes before rope_parameters, as in transformers.

    Of a family with rules by `kind` of layer, rope_scaling adds to those of full_attention. Of the others
    original_max_position_embeddings beside the rules outweighs the one among them.
    """
    scaling, stated = fields.mapping("rope_scaling"), fields.mapping("rope_parameters")
    if kind is None:
        rules = scaling or stated
        if any(isinstance(value, Mapping) for value in rules.values()):
            raise CheckpointFormatError("rope_parameters of this architecture must state one rule for all layers")
        beside = fields.optional_integer(_ORIGINAL, "")
        return {**rules, _ORIGINAL: beside} if rules and beside is not None else rules
    if not all(value is None or isinstance(value, Mapping) for value in stated.values()):
        raise CheckpointFormatError("rope_parameters of this architecture must state a rule for each kind of layer")
    own = stated.get(kind) or {}
    return {**own, **scaling} if kind == "full_attention" else own


def rotated_columns(fields: Fields, head_dim: int, default: float = 1.0) -> int:
    """How many of a head's columns are rotated: the share that config.json states where the family has one, the number
    of a GGUF file. `default` is the share where neither says."""
    if fields.gguf:
        return fields.integer("", "rope.dimension_count", int(head_dim * default), high=head_dim)
    return int(head_dim * _share(fields, rope_rules(fields))) if fields.architecture in _PARTIAL else head_dim


def _share(fields: Fields, rules: Mapping[str, Any]) -> float:
    share = positive(rules, "partial_rotary_factor", fields.number("partial_rotary_factor", "", 1.0))
    if share > 1:
        raise CheckpointFormatError(f"partial_rotary_factor must be at most 1, not {share}")
    return share


def _of_gguf(fields: Fields, dim: int, theta: float) -> Rotary:
    base = fields.number("", "rope.freq_base", theta)
    scaling = fields.choice("", "rope.scaling.type", "none", ("none", "linear", "yarn", "longrope"))
    if "rope_factors_long.weight" in fields.tensors or scaling == "longrope":
        # Phi-3 files state no scaling type, but have the factors.
        long, short = (_divisors(fields, f"rope_factors_{name}.weight", dim) for name in ("long", "short"))
        if long is None or short is None:
            raise CheckpointFormatError("rope scaling longrope needs rope_factors_long and rope_factors_short")
        magnitude = fields.number("", "rope.scaling.attn_factor", 1.0)
        return _longrope(RotarySpec.plain(dim, base), short, long, _original(fields, {}), magnitude)
    if scaling == "yarn":
        spec = _yarn_of_gguf(fields, dim, base)
    else:
        factor = fields.number("", "rope.scaling.factor", 1.0) if scaling == "linear" else 1.0
        spec = RotarySpec.plain(dim, base, factor)
    divisors = _divisors(fields, "rope_freqs.weight", dim)
    return spec if divisors is None else _divided(spec, divisors)


def _divisors(fields: Fields, name: str, dim: int) -> Sequence[float] | None:
    source = fields.tensors.get(name)
    if source is None:
        return None
    if source.shape != (dim // 2,):
        raise CheckpointFormatError(f"{name} is {source.shape}, not ({dim // 2},)")
    return _factors(numbers(source), name, dim)


def _factors(values: Any, name: str, dim: int) -> Sequence[float]:
    if not isinstance(values, list) or len(values) != dim // 2:
        raise CheckpointFormatError(f"{name} must be a list of {dim // 2} numbers")
    if not all(isinstance(f, int | float) and math.isfinite(f) and f > 0 for f in values):
        raise CheckpointFormatError(f"{name} must hold numbers above 0")
    return values


def _divided(spec: RotarySpec, divisors: Sequence[float]) -> RotarySpec:
    pairs = zip(spec.inverse_frequencies, divisors, strict=True)
    return replace(spec, inverse_frequencies=tuple(frequency / divisor for frequency, divisor in pairs))


def _of_config(fields: Fields, dim: int, rules: Mapping[str, Any], base: float) -> Rotary:
    name = rules.get("rope_type", rules.get("type", "default"))
    if name in ("default", None):
        return RotarySpec.plain(dim, base)
    if fields.architecture not in _PARTIAL and _share(fields, rules) != 1:
        # transformers leaves this factor out of the default rule; with others its layers fail.
        raise UnsupportedArchitectureError(f"partial_rotary_factor with rope scaling {name!r:.40} is not supported")
    if name == "dynamic":
        # The dynamic rule changes nothing up to max_position_embeddings, and no row is longer.
        return RotarySpec.plain(dim, base)
    if name == "linear":
        return RotarySpec.plain(dim, base, positive(rules, "factor"))
    if name == "llama3":
        return _llama3(fields, RotarySpec.plain(dim, base), rules)
    if name == "longrope" or (fields.architecture == "Phi3ForCausalLM" and name in ("su", "yarn")):
        return _longrope_of_config(fields, RotarySpec.plain(dim, base), rules)
    if name == "yarn":
        return _yarn_of_config(fields, dim, base, rules)
    raise UnsupportedArchitectureError(f"rope scaling {name!r:.40} is not supported; {_KNOWN} are")


def _original(fields: Fields, rules: Mapping[str, Any]) -> int:
    """Positions that the model was trained with before it was stretched."""
    stated = fields.optional_integer("", "rope.scaling.original_context_length")
    if stated is None and rules.get(_ORIGINAL) is not None:
        stated = int(positive(rules, _ORIGINAL))
    original = fields.integer("max_position_embeddings", "context_length") if stated is None else stated
    if original < 2:
        raise CheckpointFormatError(f"rope scaling: an original length of {original} positions")
    return original


def _llama3(fields: Fields, spec: RotarySpec, rules: Mapping[str, Any]) -> RotarySpec:
    """Slow frequencies are divided by the factor, fast ones kept, those between interpolated (Llama 3.1)."""
    factor, original = positive(rules, "factor"), _original(fields, rules)
    low, high = positive(rules, "low_freq_factor"), positive(rules, "high_freq_factor")
    if high <= low:
        raise CheckpointFormatError("rope scaling: high_freq_factor must be above low_freq_factor")

    def kept(index: int) -> float:
        turns = original * spec.inverse_frequencies[index] / (2 * math.pi)
        return (turns - low) / (high - low)

    return _interpolated(spec, factor, kept)


def _interpolated(spec: RotarySpec, factor: float, kept: Callable[[int], float]) -> RotarySpec:
    """Each frequency between itself, where kept(index) is 1 or more, and itself / factor, where that is 0 or less."""
    scaled = []
    for index, frequency in enumerate(spec.inverse_frequencies):
        share = min(1.0, max(0.0, kept(index)))
        scaled.append(frequency * (share + (1 - share) / factor))
    return replace(spec, inverse_frequencies=tuple(scaled))


def _yarn(
    spec: RotarySpec, base: float, factor: float, original: int, turns: tuple[float, float], *, truncate: bool
) -> RotarySpec:
    """YaRN (arXiv 2309.00071): columns that turn more often than `turns[0]` over the original length keep their
    frequency, those that turn less than `turns[1]` times are divided by the factor."""
    if base <= 1:
        raise CheckpointFormatError(f"rope scaling yarn needs a base above 1, not {base}")
    low, high = (spec.dim * math.log(original / (count * 2 * math.pi)) / (2 * math.log(base)) for count in turns)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.dim - 1)
    width = high - low or 0.001
    return _interpolated(spec, factor, lambda index: 1 - (index - low) / width)


def _attention_factor(factor: float, scale: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _yarn_of_config(fields: Fields, dim: int, base: float, rules: Mapping[str, Any]) -> RotarySpec:
    original = _original(fields, rules)
    if "factor" not in rules:
        raise CheckpointFormatError("rope scaling yarn must state factor")
    factor = positive(rules, "factor", fields.integer("max_position_embeddings", "") / original)
    turns = positive(rules, "beta_fast", 32.0), positive(rules, "beta_slow", 1.0)
    spec = RotarySpec.plain(dim, base)
    spec = _yarn(spec, base, factor, original, turns, truncate=rules.get("truncate", True) is not False)
    if rules.get("attention_factor") is not None:
        magnitude = positive(rules, "attention_factor")
    elif rules.get("mscale") and rules.get("mscale_all_dim"):
        scales = positive(rules, "mscale"), positive(rules, "mscale_all_dim")
        magnitude = _attention_factor(factor, scales[0]) / _attention_factor(factor, scales[1])
    else:
        magnitude = _attention_factor(factor)
    return replace(spec, magnitude=magnitude)


def _yarn_of_gguf(fields: Fields, dim: int, base: float) -> RotarySpec:
    factor, original = fields.number("", "rope.scaling.factor"), _original(fields, {})
    fast, slow = (f"rope.scaling.yarn_beta_{name}" for name in ("fast", "slow"))
    turns = fields.number("", fast, 32.0), fields.number("", slow, 1.0)
    spec = _yarn(RotarySpec.plain(dim, base), base, factor, original, turns, truncate=True)
    # Converters copy config.json's attention_factor, which is the whole magnitude, under one of two keys.
    magnitude = fields.optional_number("", "rope.scaling.yarn_attn_factor")
    magnitude = magnitude or fields.optional_number("", "rope.scaling.attn_factor")
    if magnitude is None:
        all_dim = fields.optional_number("", "rope.scaling.yarn_log_multiplier")
        magnitude = _attention_factor(factor) / (1.0 if all_dim is None else _attention_factor(factor, all_dim))
    return replace(spec, magnitude=magnitude)


def _longrope(
    spec: RotarySpec, short: Sequence[float], long: Sequence[float], original: int, magnitude: float
) -> LongRotary:
    spec = replace(spec, magnitude=magnitude)
    return LongRotary(_divided(spec, short), _divided(spec, long), original)


def _longrope_of_config(fields: Fields, spec: RotarySpec, rules: Mapping[str, Any]) -> LongRotary:
    original = _original(fields, rules)
    factor = positive(rules, "factor", fields.integer("max_position_embeddings", "") / original)
    magnitude = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    if rules.get("attention_factor") is not None:
        magnitude = positive(rules, "attention_factor")
    short, long = (_factors(rules.get(f"{name}_factor"), f"{name}_factor", spec.dim) for name in ("short", "long"))
    return _longrope(spec, short, long, original, magnitude)
