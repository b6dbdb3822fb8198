"""The corpus of broken model files: each is refused by a ModelError that names the fault and the file.

Seconds and memory are measured by benchmarks/broken_files.py, in a process for each file.
"""

from __future__ import annotations

import importlib.util
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from poot_models.errors import ModelError
from poot_models.inspection import inspect, inspect_model

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def corpus() -> Iterator[ModuleType]:
    """benchmarks/broken_files.py, which the benchmark and these tests share."""
    spec = importlib.util.spec_from_file_location("benchmarks_broken_files", BENCHMARKS / "broken_files.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        patch.setitem(sys.modules, spec.name, module)  # where dataclasses looks a module up
        spec.loader.exec_module(module)
        yield module


def test_the_corpus_is_broad(corpus: ModuleType) -> None:
    names = [case.name for case in corpus.cases()]
    assert len(set(names)) == len(names) >= 250


def test_the_models_that_are_broken_were_sound(corpus: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(corpus.sound_gguf().build())
    assert corpus.open_broken(path) == corpus.open_broken(corpus.write_directory(tmp_path)) == []


def test_every_file_is_refused_by_name(corpus: ModuleType, tmp_path: Path) -> None:
    problems = []
    for index, case in enumerate(corpus.cases()):
        folder = tmp_path / str(index)
        folder.mkdir()
        path = case.make(folder)
        try:
            outcome = corpus.Outcome(corpus.open_broken(path), None, 0.0, 0.0)
        except Exception as error:  # every one is to be in the list
            outcome = corpus.Outcome([], repr(error), 0.0, 0.0)
        if wrong := corpus.verdict(case, path, outcome):
            problems.append(f"{case.name}: {wrong}: {outcome.refusals}")
    assert problems == []


GGUF_KEYS = [
    "general.architecture",
    "general.alignment",
    "general.name",
    *(f"llama.{key}" for key in (
        "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.layer_norm_rms_epsilon",
        "attention.sliding_window", "attention.sliding_window_pattern", "block_count", "context_length",
        "embedding_length", "feed_forward_length", "rope.dimension_count", "rope.freq_base", "rope.scaling.factor",
        "rope.scaling.original_context_length", "rope.scaling.type", "rope.scaling.attn_factor",
    )),
    *(f"tokenizer.ggml.{key}" for key in (
        "add_bos_token", "add_space_prefix", "bos_token_id", "eos_token_id", "merges", "model", "padding_token_id",
        "pre", "scores", "token_type", "tokens", "unknown_token_id",
    )),
    "tokenizer.chat_template",
    "tokenizer.chat_template.tool_use",
]  # fmt: skip
CONFIG_KEYS = [
    "architectures", "attention_bias", "eos_token_id", "head_dim", "hidden_act", "hidden_size", "intermediate_size",
    "layer_types", "max_position_embeddings", "num_attention_heads", "num_hidden_layers", "num_key_value_heads",
    "original_max_position_embeddings", "quantization_config", "rms_norm_eps", "rope_parameters", "rope_scaling",
    "rope_theta", "sliding_window", "text_config", "tie_word_embeddings",
]  # fmt: skip
JSON_VALUES = [
    None, True, 0, -1, 3, 2**31, 10**300, 0.5, float("nan"), float("inf"), 1e-300, "", "yarn", [], [1], [None], [[1]],
    {}, {"a": 1}, {"rope_type": "yarn", "factor": 1e300, "beta_fast": 1e-300},
    {"rope_type": "llama3", "factor": 1e300, "low_freq_factor": 1e-300, "high_freq_factor": 1e300,
     "original_max_position_embeddings": 1},
    {"rope_type": "longrope", "short_factor": [1e-300] * 8, "long_factor": [1e300] * 8, "factor": 1e300},
]  # fmt: skip


def test_any_value_under_any_key_of_gguf(corpus: ModuleType, tmp_path: Path) -> None:
    """Taken or refused; anything but a ModelError ends the test."""
    model = sys.modules["broken_model"]
    path = tmp_path / "model.gguf"
    single = [(model.F32, struct.pack("<f", value)) for value in (0.0, -1.0, 0.5, 1e38, float("nan"), float("inf"))]
    single += [(model.U32, model.u32(value)) for value in (0, 1, 3, 2**32 - 1)]
    single += [(model.BOOL, b"\1"), (model.I32, b"\xff" * 4), (model.U64, b"\xff" * 8)]
    single += [(model.STRING, model.text(value)) for value in ("", "llama", "yarn", "longrope")]
    arrays = [model.numbers("I", value) for value in ([], [0], [1], [3] * 259, [2**32 - 1] * 4)]
    arrays += [model.numbers("f", value) for value in ([float("nan")], [1e38] * 259)]
    arrays += [model.numbers("?", [True]), model.texts([]), model.texts(["a b"]), model.texts(["a"] * 259)]
    for key in GGUF_KEYS:
        for kind, raw in (*single, *((model.ARRAY, array) for array in arrays)):
            made = model.sound_gguf()
            made.put(key, kind, raw)
            path.write_bytes(made.build())
            corpus.open_broken(path)


def test_any_value_under_any_key_of_config_json(corpus: ModuleType, tmp_path: Path) -> None:
    """As above."""
    model = sys.modules["broken_model"]
    path = model.write_directory(tmp_path)
    for key in CONFIG_KEYS:
        for value in JSON_VALUES:
            (path / "config.json").write_text(json.dumps({**model.CONFIG, key: value}))
            corpus.open_broken(path)


def test_inspect_survives_every_file(corpus: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "backend_facts", lambda handle: ())
    refused = 0
    for index, case in enumerate(corpus.cases()):
        folder = tmp_path / str(index)
        folder.mkdir()
        path = case.make(folder)
        try:
            report = inspect_model(path)
        except ModelError:
            refused += 1
        else:
            assert report.refusal or report.text.problem, case.name
    assert refused > 100
