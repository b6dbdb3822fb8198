"""Rotary frequencies at the sizes of real models against transformers' rules, from both formats."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from poot_executor.encodings import Dense, WeightSource
from poot_executor.ops import RotarySpec
from poot_models.blocks import LongRotary
from poot_models.families.fields import Fields
from poot_models.families.rotary import rotary

DIM = 128
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
LONG = {
    f"{name}_factor": [first + index / 16 for index in range(64)] for name, first in (("short", 1.0), ("long", 2.0))
}
# rule -> (base, positions, what config.json states of it)
RULES: Mapping[str, tuple[float, int, dict[str, Any]]] = {
    "linear": (1e4, 16384, {"factor": 4.0}),
    "dynamic": (1e4, 16384, {"factor": 4.0}),
    "llama3": (5e5, 131072, {"factor": 8.0, **LLAMA3}),
    "yarn": (1e6, 131072, {"factor": 4.0, "original_max_position_embeddings": 32768}),
    "longrope": (1e4, 131072, {**LONG, "factor": 32.0, "original_max_position_embeddings": 4096}),
}


class _Config(SimpleNamespace):
    def standardize_rope_params(self) -> None:
        """The rules are given as they should be."""


def expected(rule: str, seq_len: int | None = None) -> tuple[list[float], float]:
    """transformers' inverse frequencies and the factor of cosines and sines."""
    base, positions, stated = RULES[rule]
    config = _Config(
        rope_parameters={"rope_type": rule, "rope_theta": base, **stated},
        max_position_embeddings=positions,
        head_dim=DIM,
        hidden_size=DIM,
        num_attention_heads=1,
    )
    frequencies, factor = ROPE_INIT_FUNCTIONS[rule](config, torch.device("cpu"), seq_len=seq_len)
    return frequencies.tolist(), factor


def check(spec: Any, wanted: tuple[list[float], float]) -> None:
    assert isinstance(spec, RotarySpec)
    assert spec.inverse_frequencies == pytest.approx(wanted[0], rel=1e-5)
    assert spec.magnitude == pytest.approx(wanted[1], rel=1e-6)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("old", [False, True], ids=["rope_parameters", "rope_scaling"])
def test_of_a_configuration(rule: str, old: bool) -> None:
    base, positions, stated = RULES[rule]
    rules = {"rope_type": rule, **stated}
    where = {"rope_scaling": rules, "rope_theta": base} if old else {"rope_parameters": {**rules, "rope_theta": base}}
    found = rotary(Fields("X", {"max_position_embeddings": positions, **where}, {}, gguf=False), DIM)
    if rule != "longrope":
        check(found, expected(rule))
        return
    assert isinstance(found, LongRotary)
    check(found.at(4096), expected(rule, 4096))
    check(found.at(4097), expected(rule, 4097))


def source(name: str, values: list[float]) -> WeightSource:
    data = np.array(values, dtype=np.float32)
    return WeightSource(name, data.shape, Dense("F32"), data.view(np.uint8))


def of_file(base: float, positions: int, stated: dict[str, Any], tensors: dict[str, list[float]]) -> Any:
    """What a GGUF file of architecture x says, as keys without the architecture."""
    metadata = {"context_length": positions, "rope.freq_base": base, **stated}
    sources = {name: source(name, values) for name, values in tensors.items()}
    return rotary(Fields("x", {f"x.{key}": value for key, value in metadata.items()}, sources, gguf=True), DIM)


def test_linear_of_a_file() -> None:
    stated = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    check(of_file(1e4, 16384, stated, {}), expected("linear"))


def test_llama3_of_a_file() -> None:
    """Its divisors are the ratio of frequencies without the rule to those with it."""
    plain = [5e5 ** (-2 * index / DIM) for index in range(DIM // 2)]
    divisors = [before / after for before, after in zip(plain, expected("llama3")[0], strict=True)]
    assert min(divisors) == pytest.approx(1.0) and max(divisors) == pytest.approx(8.0)
    check(of_file(5e5, 131072, {}, {"rope_freqs.weight": divisors}), expected("llama3"))


def test_yarn_of_a_file() -> None:
    stated = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32768}
    check(of_file(1e6, 131072, stated, {}), expected("yarn"))


def test_longrope_of_a_file() -> None:
    _, factor = expected("longrope", 1)
    stated = {"rope.scaling.original_context_length": 4096, "rope.scaling.attn_factor": factor}
    found = of_file(
        1e4, 131072, stated, {f"rope_factors_{name}.weight": LONG[f"{name}_factor"] for name in ("short", "long")}
    )
    assert isinstance(found, LongRotary)
    check(found.at(4096), expected("longrope", 4096))
    check(found.at(4097), expected("longrope", 4097))
