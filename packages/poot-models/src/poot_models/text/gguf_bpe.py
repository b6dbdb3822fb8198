"""BPE vocabularies of GGUF files: byte-level ones, and SentencePiece's with scores or with merges."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from poot_models.errors import TokenizerError
from poot_models.text.cuts import cuts_into_known
from poot_models.text.encoders import hidden_name, reachable
from poot_models.text.gguf_keys import (
    BYTE,
    CONTROL,
    MAX_MERGES,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Tokens,
    check_pieces,
    read_flag,
    read_id,
    read_numbers,
    read_strings,
    read_text,
)
from poot_models.text.gguf_recipe import Recipe
from poot_models.text.library import library_errors
from poot_models.text.pretokenizers import Pretokenizer, pretokenizer
from poot_models.text.vocabulary import (
    SPACE,
    UNBOUNDED,
    byte_level_alphabet,
    byte_level_pieces,
    sentencepiece_pieces,
)

if TYPE_CHECKING:
    from tokenizers.models import BPE
    from tokenizers.normalizers import Normalizer

__all__ = ["merged_bpe", "scored_bpe"]

Merges = list[tuple[str, str]]
_BYTE_NAME = re.compile(r"<0x[0-9A-F]{2}>")


def merged_bpe(metadata: Mapping[str, Any], tokens: Tokens, special: frozenset[int]) -> Recipe:
    """A vocabulary with merges (``gpt2``, ``gemma4``), cut first as ``tokenizer.ggml.pre`` says."""
    kind = read_text(metadata, "tokenizer.ggml.model")
    cut = pretokenizer("gemma4" if kind == "gemma4" else read_text(metadata, "tokenizer.ggml.pre"))
    return (_byte_level if cut.byte_level else _visible)(metadata, tokens, special, cut)


def _merges(metadata: Mapping[str, Any]) -> Merges:
    lines = read_strings(metadata, "tokenizer.ggml.merges", MAX_MERGES)
    merges = [(left, right) for left, _, right in (line.partition(" ") for line in lines)]
    if bad := next((line for line in lines if line.count(" ") != 1), None):
        raise TokenizerError(f"tokenizer.ggml.merges has {bad[:64]!r}, which is not two tokens with a space between")
    return merges


def _byte_level(metadata: Mapping[str, Any], tokens: Tokens, special: frozenset[int], cut: Pretokenizer) -> Recipe:
    from tokenizers import Regex, pre_tokenizers

    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in cut.patterns]
    pieces = byte_level_pieces(tokens.texts, special.union(tokens.of(USER_DEFINED)))
    whole = all(chr(stand_in) in tokens.ids for stand_in in byte_level_alphabet())
    return Recipe(
        model=lambda: _model(tokens, special, _merges(metadata), ignore_merges=cut.ignore_merges),
        pieces=pieces,
        # A byte without a token is left out, however many there are.
        longest=max(map(len, pieces)) if whole else UNBOUNDED,
        pre_tokenizer=pre_tokenizers.Sequence(
            [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        ),
        add_bos=cut.add_bos,
    )


def _visible(metadata: Mapping[str, Any], tokens: Tokens, special: frozenset[int], cut: Pretokenizer) -> Recipe:
    from tokenizers import Regex, pre_tokenizers
    from tokenizers.normalizers import Replace

    byte_ids = [id for text, id in tokens.ids.items() if _BYTE_NAME.fullmatch(text)]
    pieces = sentencepiece_pieces(tokens.texts, byte_ids, special)

    def model() -> BPE:
        merges = _merges(metadata)
        if cut.whole_lines:
            # After the file's own merges, so that they only join what those leave apart.
            merges += _line_merges(tokens, merges)
        return _model(tokens, special, merges, **_unknown(metadata, tokens, None))

    return Recipe(
        model=model,
        pieces=pieces,
        longest=_longest(pieces, byte_ids),
        normalizers=[Replace(" ", SPACE)],
        pre_tokenizer=pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in cut.patterns]
        ),
        add_bos=cut.add_bos,
        always_bos=cut.whole_lines,  # as llama.cpp: files of Gemma 4 say that no BOS is added
    )


def _line_merges(tokens: Tokens, merges: Merges) -> Merges:
    """What joins line breaks to each run of them that is a token, and that ``merges`` do not make."""
    runs = {text for text in tokens.ids if not text.strip("\n")}
    made = {left + right for left, right in merges}
    return [
        (run[:at], run[at:])
        for run in sorted(runs - made, key=len)
        for at in range(len(run) - 1, 0, -1)
        if run[:at] in runs and run[at:] in runs
    ]


def scored_bpe(metadata: Mapping[str, Any], tokens: Tokens, special: frozenset[int]) -> Recipe:
    """SentencePiece's BPE (``llama``), whose tokens have scores and no merges."""
    from tokenizers.normalizers import Prepend, Replace

    prefix_space = read_flag(metadata, "add_space_prefix", True)
    byte_ids = tokens.of(BYTE)
    pieces = sentencepiece_pieces(tokens.texts, byte_ids, special)
    visible: Normalizer = Replace(" ", SPACE)
    return Recipe(
        model=lambda: _model(tokens, special, _merges_by_score(metadata, tokens), **_unknown(metadata, tokens, 0)),
        pieces=pieces,
        longest=_longest(pieces, byte_ids),
        strip_space=prefix_space,
        normalizers=[Prepend(SPACE), visible] if prefix_space else [visible],
        bos=1,
        eos=2,
        add_bos=True,
    )


def _model(tokens: Tokens, special: frozenset[int], merges: Merges, **options: Any) -> BPE:
    from tokenizers.models import BPE

    def made(ids: dict[str, int], merges: Merges) -> BPE:
        with library_errors("tokenizer.ggml.merges does not fit tokenizer.ggml.tokens"):
            return BPE(ids, merges, **options)

    model = made(tokens.ids, merges)
    hidden = reachable(model, {id: tokens.texts[id] for id in special})
    if not hidden:
        return model
    names = {tokens.texts[id] for id in hidden}
    ids = {hidden_name(id) if id in hidden else text: id for text, id in tokens.ids.items()}
    kept = [pair for pair in merges if names.isdisjoint((*pair, pair[0] + pair[1]))]
    if (unknown := options.get("unk_token")) in names:
        options["unk_token"] = hidden_name(tokens.ids[unknown])
    return made(ids, kept)


def _unknown(metadata: Mapping[str, Any], tokens: Tokens, default: int | None) -> dict[str, Any]:
    unknown = read_id(metadata, "unknown", tokens, default)
    return {
        "byte_fallback": True,
        "fuse_unk": True,
        "unk_token": None if unknown is None else tokens.texts[unknown],
    }


def _longest(pieces: Sequence[bytes], byte_ids: Sequence[int]) -> int:
    # Without a token for every byte, one unknown token may stand for any length of text.
    return max(map(len, pieces)) if len({pieces[id] for id in byte_ids}) == 256 else UNBOUNDED


def _merges_by_score(metadata: Mapping[str, Any], tokens: Tokens) -> Merges:
    """SentencePiece joins, again and again, the neighbours whose piece has the highest score; as ranked BPE merges that
    is: every cut of every piece into two pieces, by falling score.

    Control, unknown, unused and byte tokens are never the result, so that no plain text can become one.
    """
    scores = read_numbers(metadata, "tokenizer.ggml.scores", len(tokens.texts))
    usable = np.ones(len(tokens.texts), bool)
    usable[tokens.of(CONTROL, UNKNOWN, UNUSED, BYTE)] = False
    # Equal scores keep the order of the ids, and of one piece's cuts the longest left part comes first, so that runs of
    # one character join from the left.
    order = np.argsort(-scores.astype(np.float64), kind="stable")
    texts = [tokens.texts[id] for id in order[usable[order]].tolist()]
    check_pieces(texts)
    lefts, rights = cuts_into_known(texts)
    return list(zip(map(texts.__getitem__, lefts), map(texts.__getitem__, rights), strict=True))
