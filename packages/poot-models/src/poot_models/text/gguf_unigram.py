"""SentencePiece's Unigram vocabularies of GGUF files (``t5``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from poot_models.errors import TokenizerError
from poot_models.text.charsmap import check_charsmap
from poot_models.text.encoders import ByteFallback, hidden_name
from poot_models.text.gguf_keys import (
    BYTE,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Tokens,
    check_pieces,
    read_flag,
    read_id,
    read_numbers,
)
from poot_models.text.gguf_recipe import Recipe
from poot_models.text.library import library_errors
from poot_models.text.vocabulary import MAX_UNIGRAM_BYTES, SPACE, UNBOUNDED, sentencepiece_pieces

if TYPE_CHECKING:
    from tokenizers.models import Unigram
    from tokenizers.normalizers import Normalizer

__all__ = ["unigram"]

_KEY = "tokenizer.ggml.precompiled_charsmap"
_MAX_CHARSMAP = 1 << 22  # SentencePiece's own, nmt_nfkc, has 240,000 bytes


def unigram(metadata: Mapping[str, Any], tokens: Tokens, special: frozenset[int]) -> Recipe:
    """The tokens of the highest total score (Kudo 2018, https://arxiv.org/abs/1804.10959). The file's own character map
    and white space rules apply first, so what is encoded decodes to itself only where they change nothing."""
    unknown = read_id(metadata, "unknown", tokens, 2)
    if unknown is None:
        raise TokenizerError(
            "the Unigram vocabulary has no unknown token; tokenizer.ggml.unknown_token_id must name one of its ids"
        )
    check_pieces(tokens.texts)
    if (size := sum(len(text.encode()) for text in tokens.texts)) > MAX_UNIGRAM_BYTES:
        raise TokenizerError(
            f"tokenizer.ggml.tokens has {size} bytes; a Unigram vocabulary has up to {MAX_UNIGRAM_BYTES}"
        )
    byte_ids = tokens.of(BYTE)
    pieces = sentencepiece_pieces(tokens.texts, byte_ids, special)
    values = {pieces[id]: id for id in byte_ids}
    prefix_space = read_flag(metadata, "add_space_prefix", False)
    return Recipe(
        model=lambda: _model(metadata, tokens, special, unknown),
        pieces=pieces,
        longest=UNBOUNDED,
        strip_space=prefix_space,
        normalizers=_normalizers(metadata, prefix_space),
        fallback=ByteFallback(unknown, tuple(values[bytes([byte])] for byte in range(256)))
        if len(values) == 256
        else None,
        eos=1,
        add_eos=True,
    )


def _model(metadata: Mapping[str, Any], tokens: Tokens, special: frozenset[int], unknown: int) -> Unigram:
    from tokenizers.models import Unigram

    hidden = special.union(tokens.of(BYTE, UNKNOWN, UNUSED), [unknown])
    scores = read_numbers(metadata, "tokenizer.ggml.scores", len(tokens.texts)).astype(np.float64)
    # As SentencePiece has it: a token of the user's own costs nothing. The score of a hidden token says nothing either,
    # but the library takes the lowest of all for what an unknown character costs.
    scores[[*hidden, *tokens.of(USER_DEFINED)]] = 0.0
    names = [hidden_name(id) if id in hidden else text for id, text in enumerate(tokens.texts)]
    with library_errors("tokenizer.ggml.tokens does not make a Unigram model"):
        return Unigram(list(zip(names, scores.tolist(), strict=True)), unknown, byte_fallback=False)


def _normalizers(metadata: Mapping[str, Any], prefix_space: bool) -> list[Normalizer]:
    from tokenizers import Regex
    from tokenizers.normalizers import Precompiled, Prepend, Replace

    steps: list[Normalizer] = []
    if charsmap := _charsmap(metadata):
        check_charsmap(charsmap, _KEY)
        with library_errors(f"{_KEY} is not a character map"):
            steps.append(Precompiled(charsmap))
    if read_flag(metadata, "remove_extra_whitespaces", False):
        steps += [Replace(Regex(" {2,}"), " "), Replace(Regex(r"\A | \z"), "")]
    if prefix_space:
        steps.append(Prepend(SPACE))
    return [*steps, Replace(" ", SPACE)]


def _charsmap(metadata: Mapping[str, Any]) -> bytes:
    values = metadata.get(_KEY)
    if values is None:
        return b""
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype not in (np.int8, np.uint8):
        raise TokenizerError(f"{_KEY} is not an array of bytes")
    if len(values) > _MAX_CHARSMAP:
        raise TokenizerError(f"{_KEY} has {len(values)} bytes; the most is {_MAX_CHARSMAP}")
    return values.tobytes()
