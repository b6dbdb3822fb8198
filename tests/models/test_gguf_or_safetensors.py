"""open_checkpoint: either format by its path, and advice for everything else."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from poot_models.checkpoint import open_checkpoint
from poot_models.errors import CheckpointError, CheckpointFormatError, CheckpointMissingError, ModelError


def test_a_gguf_file_whatever_its_name(tmp_path: Path, gguf_bytes: Callable[..., bytes]) -> None:
    for name in ("model.gguf", "sha256-0123"):
        path = tmp_path / name
        path.write_bytes(gguf_bytes())
        with open_checkpoint(str(path)) as checkpoint:
            assert (checkpoint.format, checkpoint.path) == ("gguf", path)


def test_a_safetensors_directory(tmp_path: Path, safetensors_bytes: Callable[..., bytes]) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes({}))
    with open_checkpoint(tmp_path) as checkpoint:
        assert (checkpoint.format, checkpoint.path, checkpoint.metadata["model_type"]) == (
            "safetensors",
            tmp_path,
            "llama",
        )


@pytest.mark.parametrize("path", ["missing.gguf", "", "x" * 5000, "nul\0.gguf", "~nobody-of-this-name/x.gguf"])
def test_a_path_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointMissingError):
        open_checkpoint(path)


def test_files_that_are_no_checkpoint(tmp_path: Path) -> None:
    for name, content, message in (
        ("empty.gguf", b"", "is empty"),
        ("model.gguf", b"<!DOCTYPE html>", "no GGUF file"),
        ("pytorch_model.bin", b"PK\x03\x04", "pickle"),
        ("model.safetensors", b"x", "give its directory"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CheckpointFormatError, match=message):
            open_checkpoint(tmp_path / name)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(CheckpointFormatError, match="not a regular file"):
        open_checkpoint(tmp_path / "pipe.gguf")


def test_codes_are_distinct_and_stable() -> None:
    codes: dict[str, type[ModelError]] = {}
    kinds = [ModelError]
    while kinds:
        kind = kinds.pop()
        assert codes.setdefault(kind.code, kind) is kind
        kinds += kind.__subclasses__()
    assert codes["checkpoint_format"] is CheckpointFormatError
    assert issubclass(CheckpointMissingError, CheckpointError)
