"""Tiny random models of every family (benchmarks/tiny_models.py), saved and written."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import gguf
import pytest
from transformers import PreTrainedModel


@pytest.fixture(scope="session")
def saved(
    tmp_path_factory: pytest.TempPathFactory, tiny_models: ModuleType
) -> Callable[..., tuple[Path, PreTrainedModel]]:
    """(name, keywords of save_pretrained) -> (directory, model)."""

    def save(name: str, **keywords: Any) -> tuple[Path, PreTrainedModel]:
        model, path = tiny_models.build(name), tmp_path_factory.mktemp("tiny")
        tiny_models.save(model, path, **keywords)
        return path, model

    return save


@pytest.fixture(scope="session")
def with_images(
    tmp_path_factory: pytest.TempPathFactory, tiny_models: ModuleType
) -> Callable[[str, bool], tuple[Path, PreTrainedModel]]:
    """(name of a Mistral, whether its head is tied) -> (directory, model) of a Mistral 3 with that as its text part."""

    def save(name: str, tied: bool) -> tuple[Path, PreTrainedModel]:
        model, path = tiny_models.with_images(name, tied), tmp_path_factory.mktemp("tiny")
        tiny_models.save(model, path)
        return path, model

    return save


@pytest.fixture(scope="session")
def written(
    tmp_path_factory: pytest.TempPathFactory, tiny_models: ModuleType, tiny_gguf_writer: ModuleType
) -> Callable[..., tuple[Path, PreTrainedModel]]:
    """(name, ggml type, architecture unless the model's own) -> (GGUF file, a transformers model of what it holds)."""

    def write(name: str, kind: str, architecture: str | None = None) -> tuple[Path, PreTrainedModel]:
        model, path = tiny_models.build(name), tmp_path_factory.mktemp("tiny") / "tiny.gguf"
        state = tiny_gguf_writer.write_gguf(model, path, gguf.GGMLQuantizationType[kind], architecture)
        return path, tiny_models.holding(model, state)

    return write


@pytest.fixture(scope="session")
def stated() -> Callable[[Path], dict[str, Any]]:
    """(directory) -> its config.json."""
    return lambda path: json.loads((path / "config.json").read_text())


@pytest.fixture(scope="session")
def changed() -> Callable[[Path, dict[str, Any]], Path]:
    """(directory, config.json) -> the directory with that configuration."""

    def write(path: Path, config: dict[str, Any]) -> Path:
        (path / "config.json").write_text(json.dumps(config))
        return path

    return write


@pytest.fixture(scope="session")
def old_config() -> Callable[[Path], None]:
    """Rewrite a directory's config.json as transformers 4 wrote it: rope_theta and rope_scaling at its top."""

    def rewrite(path: Path) -> None:
        config = json.loads((path / "config.json").read_text())
        rules = config.pop("rope_parameters")
        if "full_attention" in rules:
            config["rope_local_base_freq"] = rules["sliding_attention"]["rope_theta"]
            config["sliding_window_pattern"] = config.pop("_sliding_window_pattern", 6)
            rules = rules["full_attention"]
            del config["layer_types"]
        if config["model_type"] in ("qwen2", "gemma2"):
            del config["layer_types"]
        config["rope_theta"] = rules.pop("rope_theta")
        if "partial_rotary_factor" in rules:
            config["partial_rotary_factor"] = rules.pop("partial_rotary_factor")
        config["rope_scaling"] = rules if rules["rope_type"] != "default" else None
        (path / "config.json").write_text(json.dumps(config))

    return rewrite
