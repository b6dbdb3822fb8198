"""Tokenizers from the metadata of a GGUF file alone.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, section "Tokenizer". Where that document is silent the
rules are llama.cpp's (``llama_vocab::impl::load``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from poot_models.errors import TokenizerError
from poot_models.text.library import library_errors
from poot_models.text.pretokenizers import pretokenizer
from poot_models.text.tokenizer import GUARD, Encoders, Tokenizer
from poot_models.text.vocabulary import SPACE, Vocabulary, byte_level_pieces, end_names, sentencepiece_pieces

if TYPE_CHECKING:
    from tokenizers import AddedToken
    from tokenizers.models import Model
    from tokenizers.normalizers import Normalizer
    from tokenizers.pre_tokenizers import PreTokenizer

__all__ = ["gguf_tokenizer"]

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 2, 3, 4, 5, 6  # tokenizer.ggml.token_type
_MAX_TOKENS = 1 << 21
_MAX_MERGES = 1 << 22
_MAX_CHARACTERS = 1 << 25
# Every cut of every SentencePiece token is looked at once; Gemma 3's 262,144 tokens have 1.6 million.
_MAX_PIECE = 256
_MAX_CUTS = 1 << 23


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The vocabulary as the file gives it: texts, their ids, and each id's type."""

    texts: list[str]
    ids: dict[str, int]
    types: np.ndarray

    def of(self, *types: int) -> list[int]:
        found: list[int] = np.flatnonzero(np.isin(self.types, types)).tolist()
        return found


def gguf_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that a GGUF file's ``tokenizer.ggml.*`` keys describe.

    ``gpt2`` (byte-level BPE) and ``llama`` (SentencePiece BPE) are built. Text is not normalised, as in llama.cpp:
    what is encoded decodes to itself. Raises ``TokenizerError`` for any other kind and for keys that are missing or
    disagree.
    """
    kind = _text(metadata, "tokenizer.ggml.model")
    if kind == "gpt2":
        return _byte_level(metadata)
    if kind == "llama":
        return _sentencepiece(metadata)
    if not kind:
        raise TokenizerError("the GGUF file has no tokenizer (tokenizer.ggml.model); use a file that has one")
    raise TokenizerError(
        f"the GGUF file's tokenizer is of the kind {kind[:64]!r}; poot reads 'gpt2' (byte-level BPE) and 'llama' "
        "(SentencePiece BPE)"
    )


def _byte_level(metadata: Mapping[str, Any]) -> Tokenizer:
    from tokenizers import Regex, pre_tokenizers
    from tokenizers.models import BPE

    tokens = _tokens(metadata)
    cut = pretokenizer(_text(metadata, "tokenizer.ggml.pre"))
    lines = _strings(metadata, "tokenizer.ggml.merges", _MAX_MERGES)
    if bad := next((line for line in lines if line.count(" ") != 1), None):
        raise TokenizerError(f"tokenizer.ggml.merges has {bad[:64]!r}, which is not two tokens with a space between")
    merges = [(left, right) for left, _, right in (line.partition(" ") for line in lines)]
    with library_errors("tokenizer.ggml.merges does not fit tokenizer.ggml.tokens"):
        model = BPE(tokens.ids, merges, ignore_merges=cut.ignore_merges)
    steps: list[PreTokenizer] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in cut.patterns]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    ends = end_names(tokens.ids, set(tokens.of(_CONTROL)).__contains__)
    special = ends.union(tokens.of(_CONTROL, _UNKNOWN))
    vocabulary = Vocabulary(
        pieces=byte_level_pieces(tokens.texts, special.union(tokens.of(_USER_DEFINED))),
        special=special,
        bos_id=_token_id(metadata, "bos", tokens, None),
        eos_id=_token_id(metadata, "eos", tokens, None),
        eog_ids=ends.union(_named_ends(metadata, tokens)),
    )
    return _assemble(
        metadata, tokens, vocabulary, model, pre_tokenizer=pre_tokenizers.Sequence(steps), add_bos=cut.add_bos
    )


def _sentencepiece(metadata: Mapping[str, Any]) -> Tokenizer:
    from tokenizers.models import BPE
    from tokenizers.normalizers import Prepend, Replace

    tokens = _tokens(metadata)
    prefix_space = _flag(metadata, "tokenizer.ggml.add_space_prefix", True)
    scores = _numbers(metadata, "tokenizer.ggml.scores", tokens, 0)
    unknown = _token_id(metadata, "unknown", tokens, 0)
    merges = _merges_by_score(tokens, scores)
    unk_token = None if unknown is None else tokens.texts[unknown]
    with library_errors("tokenizer.ggml.tokens does not make a vocabulary"):
        model = BPE(tokens.ids, merges, byte_fallback=True, fuse_unk=True, unk_token=unk_token)
    ends = end_names(tokens.ids, set(tokens.of(_CONTROL)).__contains__)
    special = ends.union(tokens.of(_CONTROL, _UNKNOWN))
    vocabulary = Vocabulary(
        pieces=sentencepiece_pieces(tokens.texts, tokens.of(_BYTE), special),
        special=special,
        bos_id=_token_id(metadata, "bos", tokens, 1),
        eos_id=_token_id(metadata, "eos", tokens, 2),
        eog_ids=ends.union(_named_ends(metadata, tokens)),
        strip_space=prefix_space,
    )
    visible = Replace(" ", SPACE)
    normalizers: list[Normalizer] = [Prepend(SPACE), visible] if prefix_space else [visible]
    return _assemble(metadata, tokens, vocabulary, model, normalizers=normalizers, add_bos=True)


def _merges_by_score(tokens: _Tokens, scores: np.ndarray) -> list[tuple[str, str]]:
    """SentencePiece joins, again and again, the neighbours whose piece has the highest score; as ranked BPE merges that
    is: every cut of every piece into two pieces, by falling score.

    Control, unknown, unused and byte tokens are never the result, so that no plain text can become one.
    """
    banned = set(tokens.of(_CONTROL, _UNKNOWN, _UNUSED, _BYTE))
    known = {text for text, id in tokens.ids.items() if id not in banned}
    if longest := next((text for text in known if len(text) > _MAX_PIECE), None):
        raise TokenizerError(
            f"tokenizer.ggml.tokens has a token of {len(longest)} characters ({longest[:32]!r}...); "
            f"a SentencePiece vocabulary has at most {_MAX_PIECE}"
        )
    if (cuts := sum(map(len, known))) > _MAX_CUTS:
        raise TokenizerError(
            f"tokenizer.ggml.tokens has {cuts} characters; a SentencePiece vocabulary has up to {_MAX_CUTS}"
        )
    merges: list[tuple[str, str]] = []
    # Equal scores keep the order of the ids, and of one piece's cuts the longest left part comes first, so that runs
    # of one character join from the left.
    for id in np.argsort(-scores.astype(np.float64), kind="stable").tolist():
        text = tokens.texts[id]
        if id in banned:
            continue
        for cut in range(len(text) - 1, 0, -1):
            left = text[:cut]
            if left in known and (right := text[cut:]) in known:
                merges.append((left, right))
    return merges


def _assemble(
    metadata: Mapping[str, Any],
    tokens: _Tokens,
    vocabulary: Vocabulary,
    model: Model,
    *,
    pre_tokenizer: PreTokenizer | None = None,
    normalizers: Sequence[Normalizer] = (),
    add_bos: bool,
) -> Tokenizer:
    from tokenizers import Tokenizer as Encoder
    from tokenizers.normalizers import Replace
    from tokenizers.normalizers import Sequence as InTurn

    def encoder(added: list[AddedToken], steps: Sequence[Normalizer]) -> Encoder:
        made = Encoder(model)  # the model itself is shared
        made.add_tokens(added)
        if pre_tokenizer is not None:
            made.pre_tokenizer = pre_tokenizer
        if steps:
            made.normalizer = InTurn(list(steps))
        return made

    user, control = _added(metadata, tokens, vocabulary.special)
    encoders = Encoders(
        plain=encoder(user, normalizers),
        special=encoder(user + control, normalizers),
        guarded=encoder(user + control, [Replace(GUARD, ""), *normalizers]),
    )
    bos = [vocabulary.bos_id] if _flag(metadata, "tokenizer.ggml.add_bos_token", add_bos) else []
    eos = [vocabulary.eos_id] if _flag(metadata, "tokenizer.ggml.add_eos_token", False) else []
    return Tokenizer(
        encoders, vocabulary, prefix=[id for id in bos if id is not None], suffix=[id for id in eos if id is not None]
    )


def _added(
    metadata: Mapping[str, Any], tokens: _Tokens, special: frozenset[int]
) -> tuple[list[AddedToken], list[AddedToken]]:
    """(tokens found in any text, tokens found only when control tokens are to be)."""
    from tokenizers import AddedToken

    # Phi-3's control tokens swallow the space after them, which GGUF has no key for: llama.cpp goes by the name too.
    name = _text(metadata, "general.name").lower()
    swallow = special if "phi-3" in name or "phi3" in name else frozenset()
    keep = {"<unk>", "<s>", "<|endoftext|>"}

    def added(id: int) -> AddedToken:
        text = tokens.texts[id]
        return AddedToken(text, normalized=False, special=id in special, rstrip=id in swallow and text not in keep)

    user = [added(id) for id in tokens.of(_USER_DEFINED) if id not in special]
    return user, [added(id) for id in sorted(special)]


def _named_ends(metadata: Mapping[str, Any], tokens: _Tokens) -> frozenset[int]:
    """The ends that the file's own keys name."""
    keys = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
    default = 2 if metadata.get("tokenizer.ggml.model") == "llama" else None
    found = (_token_id(metadata, key, tokens, default if key == "eos" else None) for key in keys)
    return frozenset(id for id in found if id is not None)


def _tokens(metadata: Mapping[str, Any]) -> _Tokens:
    texts = _strings(metadata, "tokenizer.ggml.tokens", _MAX_TOKENS)
    if not texts:
        raise TokenizerError("tokenizer.ggml.tokens is empty; the file has no vocabulary")
    texts = [text or f"[EMPTY_{id}]" for id, text in enumerate(texts)]
    ids = {text: id for id, text in enumerate(texts)}
    if len(ids) != len(texts):
        text = next(text for id, text in enumerate(texts) if ids[text] != id)
        raise TokenizerError(f"tokenizer.ggml.tokens has {text[:64]!r} twice; each token must be there once")
    return _Tokens(texts, ids, _numbers(metadata, "tokenizer.ggml.token_type", None, len(texts)))


def _strings(metadata: Mapping[str, Any], key: str, most: int) -> list[str]:
    values = metadata.get(key)
    if values is None:
        raise TokenizerError(f"the GGUF file has no {key}, which its tokenizer needs")
    if isinstance(values, str | bytes | np.ndarray) or not isinstance(values, Sequence):
        raise TokenizerError(f"{key} is not an array of strings")
    if len(values) > most:
        raise TokenizerError(f"{key} has {len(values)} strings; the most is {most}")
    strings: list[str] = values.tolist() if hasattr(values, "tolist") else list(values)
    if (size := sum(map(len, strings))) > _MAX_CHARACTERS:
        raise TokenizerError(f"{key} has {size} characters; the most is {_MAX_CHARACTERS}")
    return strings


def _numbers(metadata: Mapping[str, Any], key: str, tokens: _Tokens | None, count: int) -> np.ndarray:
    """The array ``key``, one number a token; required if ``tokens`` is given, else 1 (normal) for every token."""
    values = metadata.get(key)
    count = len(tokens.texts) if tokens is not None else count
    if values is None and tokens is None:
        return np.ones(count, np.int32)
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in "iuf":
        raise TokenizerError(f"the GGUF file's {key} is missing or not an array of numbers")
    if len(values) < count:
        raise TokenizerError(f"{key} has {len(values)} numbers for {count} tokens")
    values = values[:count]
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise TokenizerError(f"{key} has a number that is not finite")
    return values


def _token_id(metadata: Mapping[str, Any], name: str, tokens: _Tokens, default: int | None) -> int | None:
    """``tokenizer.ggml.<name>_token_id``. An id outside the vocabulary counts as missing, as in llama.cpp."""
    value = metadata.get(f"tokenizer.ggml.{name}_token_id", default)
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < len(tokens.texts):
        value = default
    return int(value) if value is not None and value < len(tokens.texts) else None


def _flag(metadata: Mapping[str, Any], key: str, default: bool) -> bool:
    value = metadata.get(key, default)
    if not isinstance(value, bool | np.bool_):
        raise TokenizerError(f"{key} is {str(value)[:32]!r}, not true or false")
    return bool(value)


def _text(metadata: Mapping[str, Any], key: str) -> str:
    value = metadata.get(key, "")
    if not isinstance(value, str):
        raise TokenizerError(f"{key} is not a string")
    return value
