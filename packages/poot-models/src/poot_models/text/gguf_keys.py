"""The ``tokenizer.ggml.*`` keys of a GGUF file, each checked when it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from poot_models.errors import TokenizerError

__all__ = [
    "BYTE",
    "CONTROL",
    "MAX_MERGES",
    "UNKNOWN",
    "UNUSED",
    "USER_DEFINED",
    "Tokens",
    "check_pieces",
    "read_flag",
    "read_id",
    "read_numbers",
    "read_strings",
    "read_text",
    "read_tokens",
]

UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 2, 3, 4, 5, 6  # tokenizer.ggml.token_type
MAX_MERGES = 1 << 22
_MAX_TOKENS = 1 << 21
_MAX_CHARACTERS = 1 << 25
# Work and memory of a SentencePiece vocabulary go with its characters; Gemma 3's 262,144 tokens have 1.5 million.
_MAX_PIECE = 256
_MAX_PIECE_CHARACTERS = 1 << 23


@dataclass(frozen=True, slots=True)
class Tokens:
    """The vocabulary as the file gives it: texts, their ids, and each id's type."""

    texts: list[str]
    ids: dict[str, int]
    types: np.ndarray

    def of(self, *types: int) -> list[int]:
        found: list[int] = np.flatnonzero(np.isin(self.types, types)).tolist()
        return found


def read_tokens(metadata: Mapping[str, Any]) -> Tokens:
    """``tokenizer.ggml.tokens`` and ``tokenizer.ggml.token_type``. A token without a text gets a name, as in llama.cpp.

    Raises ``TokenizerError`` if there are none, too many, or two of one text.
    """
    texts = read_strings(metadata, "tokenizer.ggml.tokens", _MAX_TOKENS)
    if not texts:
        raise TokenizerError("tokenizer.ggml.tokens is empty; the file has no vocabulary")
    texts = [text or f"[EMPTY_{id}]" for id, text in enumerate(texts)]
    ids = {text: id for id, text in enumerate(texts)}
    if len(ids) != len(texts):
        text = next(text for id, text in enumerate(texts) if ids[text] != id)
        raise TokenizerError(f"tokenizer.ggml.tokens has {text[:64]!r} twice; each token must be there once")
    types = (
        read_numbers(metadata, "tokenizer.ggml.token_type", len(texts))
        if metadata.get("tokenizer.ggml.token_type") is not None
        else np.ones(len(texts), np.int32)
    )
    return Tokens(texts, ids, types)


def check_pieces(texts: Sequence[str]) -> None:
    """Refuse a SentencePiece vocabulary whose pieces are longer, or together longer, than any real one's."""
    if longest := next((text for text in texts if len(text) > _MAX_PIECE), None):
        raise TokenizerError(
            f"tokenizer.ggml.tokens has a token of {len(longest)} characters ({longest[:32]!r}...); "
            f"a SentencePiece vocabulary has at most {_MAX_PIECE}"
        )
    if (size := sum(map(len, texts))) > _MAX_PIECE_CHARACTERS:
        raise TokenizerError(
            f"tokenizer.ggml.tokens has {size} characters; a SentencePiece vocabulary has up to {_MAX_PIECE_CHARACTERS}"
        )


def read_strings(metadata: Mapping[str, Any], key: str, most: int) -> list[str]:
    values = metadata.get(key)
    if values is None:
        raise TokenizerError(f"the GGUF file has no {key}, which its tokenizer needs")
    if isinstance(values, str | bytes | np.ndarray) or not isinstance(values, Sequence):
        raise TokenizerError(f"{key} is not an array of strings")
    if len(values) > most:
        raise TokenizerError(f"{key} has {len(values)} strings; the most is {most}")
    # A GGUF file's own array holds nothing but strings.
    strings: list[str] = values.tolist() if hasattr(values, "tolist") else list(values)
    if not hasattr(values, "tolist") and not all(isinstance(string, str) for string in strings):
        raise TokenizerError(f"{key} is not an array of strings")
    if (size := sum(map(len, strings))) > _MAX_CHARACTERS:
        raise TokenizerError(f"{key} has {size} characters; the most is {_MAX_CHARACTERS}")
    return strings


def read_numbers(metadata: Mapping[str, Any], key: str, count: int) -> np.ndarray:
    """The array ``key``, of which the first ``count`` numbers are the tokens'."""
    values = metadata.get(key)
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in "iuf":
        raise TokenizerError(f"the GGUF file's {key} is missing or not an array of numbers")
    if len(values) < count:
        raise TokenizerError(f"{key} has {len(values)} numbers for {count} tokens")
    values = values[:count]
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise TokenizerError(f"{key} has a number that is not finite")
    return values


def read_id(metadata: Mapping[str, Any], name: str, tokens: Tokens, default: int | None) -> int | None:
    """``tokenizer.ggml.<name>_token_id``. An id outside the vocabulary counts as missing, as in llama.cpp."""
    value = metadata.get(f"tokenizer.ggml.{name}_token_id", default)
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < len(tokens.texts):
        value = default
    return int(value) if value is not None and value < len(tokens.texts) else None


def read_flag(metadata: Mapping[str, Any], name: str, default: bool) -> bool:
    """``tokenizer.ggml.<name>``, which must be a bool if it is there."""
    value = metadata.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(value, bool | np.bool_):
        raise TokenizerError(f"tokenizer.ggml.{name} is {str(value)[:32]!r}, not true or false")
    return bool(value)


def read_text(metadata: Mapping[str, Any], key: str) -> str:
    value = metadata.get(key, "")
    if not isinstance(value, str):
        raise TokenizerError(f"{key} is not a string")
    return value
