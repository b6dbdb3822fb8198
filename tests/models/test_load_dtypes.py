"""Checkpoints whose tensors are of several dtypes, and dtypes and packings that are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from poot_executor.devices import Live, open_device
from poot_executor.encodings import Dense
from poot_executor.ops import RowLayout
from poot_executor.runtime import EntryKey, compile_graphs, prepare
from poot_models import load
from poot_models.blocks import StepShape
from poot_models.errors import UnsupportedEncodingError

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}
LAYER = "model.layers.0."
MIXED = {
    "model.embed_tokens": ((40, 64), torch.bfloat16),
    "model.norm": ((64,), torch.float16),
    "lm_head": ((40, 64), torch.float32),
    f"{LAYER}input_layernorm": ((64,), torch.bfloat16),
    f"{LAYER}post_attention_layernorm": ((64,), torch.float32),
    f"{LAYER}self_attn.q_proj": ((64, 64), torch.bfloat16),
    f"{LAYER}self_attn.k_proj": ((32, 64), torch.float16),
    f"{LAYER}self_attn.v_proj": ((32, 64), torch.float32),
    f"{LAYER}self_attn.o_proj": ((64, 64), torch.float16),
    f"{LAYER}mlp.gate_proj": ((96, 64), torch.float16),
    f"{LAYER}mlp.up_proj": ((96, 64), torch.bfloat16),
    f"{LAYER}mlp.down_proj": ((64, 96), torch.float32),
}
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """(dtype of all tensors, or None for MIXED's own) -> a directory; every weight is the same number in each dtype."""

    def write(dtype: torch.dtype | None, changed: dict[str, torch.Tensor] | None = None, **config: object) -> Path:
        generator = torch.Generator().manual_seed(1)
        tensors = {}
        for name, (shape, own) in MIXED.items():
            # Multiples of 1/64 below 2: seven bits, which all three dtypes hold.
            values = torch.randint(-24, 24, shape, generator=generator) / 64
            tensors[f"{name}.weight"] = values.to(dtype or own)
        folder = tmp_path / str(dtype)
        folder.mkdir()
        save_file({**tensors, **(changed or {})}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
        return folder

    return write


def top_values(path: Path) -> np.ndarray:
    """Log-probabilities of the four likeliest tokens after each of TOKENS, (8, 4), on the CPU backend."""
    handle, count = load(path), len(TOKENS)
    shape = StepShape(count, 1, 32, 32, (1,), (1,), 8, 4)
    device, key = open_device("cpu"), EntryKey("score", count)
    entry = prepare(device, compile_graphs(device, {key: handle.score(shape, 4)}), handle.weights)[key]
    block = np.zeros(shape.row_table.step_block(count), dtype=np.int32)
    block[:2] = count, 1
    block[RowLayout.HEADER : RowLayout.HEADER + RowLayout.RUN] = 0, RowLayout.CONTINUE, count, RowLayout.PROMPT_RUN
    start = RowLayout.HEADER + RowLayout.RUN
    block[start : start + count] = TOKENS
    entry.stage("block", block)
    entry.stage("targets", np.zeros(count, dtype=np.int32))
    entry.run(Live(tokens=count, runs=1))
    return np.array(entry.read("top_values", count))


def test_dtypes_side_by_side_compute_what_one_does(make: Make) -> None:
    mixed = make(None)
    assert {source.encoding for source in load(mixed).weights.values()} == {Dense("F32"), Dense("F16"), Dense("BF16")}
    found, expected = top_values(mixed), top_values(make(torch.float32))
    assert np.isfinite(found).all()
    assert np.unique(expected).size > 20
    assert np.abs(found - expected).max() < 1e-4


@pytest.mark.parametrize("dtype", [torch.int8, torch.float64, torch.int64])
def test_a_weight_of_a_dtype_that_is_no_weights(make: Make, dtype: torch.dtype) -> None:
    path = make(torch.float32, {f"{LAYER}mlp.up_proj.weight": torch.zeros(96, 64, dtype=dtype)})
    name = {torch.int8: "I8", torch.float64: "F64", torch.int64: "I64"}[dtype]
    with pytest.raises(UnsupportedEncodingError, match=rf"mlp\.up_proj\.weight is of dtype {name}.*BF16") as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_an_unused_tensor_may_be_of_any_dtype(make: Make) -> None:
    model = load(make(torch.float32, {"position_ids": torch.arange(3)}))
    assert model.ignored == ("position_ids",)


def test_fp8_is_refused_by_name(make: Make) -> None:
    weight = torch.zeros(96, 64).to(torch.float8_e4m3fn)
    with pytest.raises(UnsupportedEncodingError, match=r"mlp\.up_proj\.weight' is of dtype 'F8_E4M3'"):
        load(make(torch.float32, {f"{LAYER}mlp.up_proj.weight": weight}))


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"quantization_config": {"bits": 4}}, "without a name"),
        ({"quantization_config": "awq"}, "without a name"),
        ({"compression_config": {"quant_method": "compressed-tensors"}}, "compressed-tensors"),
    ],
)
def test_packed_weights_are_refused_by_their_method(make: Make, config: dict[str, object], method: str) -> None:
    with pytest.raises(UnsupportedEncodingError, match=f"quantised by .*{method}.*GGUF"):
        load(make(torch.float32, **config))
    assert load(make(torch.float16, quantization_config=None))
