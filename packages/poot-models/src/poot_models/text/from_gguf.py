"""Tokenizers from the metadata of a GGUF file alone.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, section "Tokenizer". Where that document is silent the
rules are llama.cpp's (``llama_vocab::impl::load``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from poot_models.errors import TokenizerError
from poot_models.text.encoders import build_encoders
from poot_models.text.gguf_bpe import merged_bpe, scored_bpe
from poot_models.text.gguf_keys import (
    CONTROL,
    UNKNOWN,
    USER_DEFINED,
    Tokens,
    read_flag,
    read_id,
    read_text,
    read_tokens,
)
from poot_models.text.gguf_unigram import unigram
from poot_models.text.gguf_wordpiece import wordpiece
from poot_models.text.tokenizer import Tokenizer
from poot_models.text.vocabulary import Vocabulary, end_names

if TYPE_CHECKING:
    from tokenizers import AddedToken

    from poot_models.text.gguf_recipe import Recipe

__all__ = ["gguf_tokenizer"]

_KINDS = {"gpt2": merged_bpe, "gemma4": merged_bpe, "llama": scored_bpe, "t5": unigram, "bert": wordpiece}


def gguf_tokenizer(metadata: Mapping[str, Any], *, encodes: bool = True) -> Tokenizer:
    """The tokenizer that a GGUF file's ``tokenizer.ggml.*`` keys describe. ``encodes`` as in ``load_text``.

    ``gpt2`` and ``gemma4`` (BPE with merges), ``llama`` (SentencePiece BPE), ``t5`` (SentencePiece Unigram) and
    ``bert`` (WordPiece) are built. Text for BPE is not normalised, as in llama.cpp: what is encoded decodes to itself.
    Raises ``TokenizerError`` for any other kind and for keys that are missing or disagree.
    """
    kind = read_text(metadata, "tokenizer.ggml.model")
    if not kind:
        raise TokenizerError("the GGUF file has no tokenizer (tokenizer.ggml.model); use a file that has one")
    if kind not in _KINDS:
        raise TokenizerError(
            f"the GGUF file's tokenizer is of the kind {kind[:64]!r}, which poot does not read; it reads 'gpt2' and "
            "'gemma4' (BPE with merges), 'llama' (SentencePiece BPE), 't5' (SentencePiece Unigram), 'bert' (WordPiece)"
        )
    tokens = read_tokens(metadata)
    ends = end_names(tokens.ids, set(tokens.of(CONTROL)).__contains__)
    special = ends.union(tokens.of(CONTROL, UNKNOWN))
    recipe = _KINDS[kind](metadata, tokens, special)
    vocabulary = Vocabulary(
        pieces=recipe.pieces,
        special=special,
        bos_id=read_id(metadata, "bos", tokens, recipe.bos),
        eos_id=read_id(metadata, "eos", tokens, recipe.eos),
        eog_ids=ends.union(_named_ends(metadata, tokens, recipe)),
        strip_space=recipe.strip_space,
        longest=recipe.longest,
    )
    encoders = None
    if encodes:
        encoders = build_encoders(
            recipe.model(),
            _added(metadata, tokens, special),
            special,
            normalizers=recipe.normalizers,
            pre_tokenizer=recipe.pre_tokenizer,
            fallback=recipe.fallback,
        )
    prefix, suffix = _surround(metadata, vocabulary, recipe)
    return Tokenizer(encoders, vocabulary, prefix=prefix, suffix=suffix)


def _surround(metadata: Mapping[str, Any], vocabulary: Vocabulary, recipe: Recipe) -> tuple[list[int], list[int]]:
    bos = [vocabulary.bos_id] if read_flag(metadata, "add_bos_token", recipe.add_bos) or recipe.always_bos else []
    eos = [vocabulary.eos_id] if read_flag(metadata, "add_eos_token", recipe.add_eos) else []
    if recipe.separator is not None and read_flag(metadata, "add_sep_token", True):
        eos = [recipe.separator]
    return [id for id in bos if id is not None], [id for id in eos if id is not None]


def _added(metadata: Mapping[str, Any], tokens: Tokens, special: frozenset[int]) -> dict[int, AddedToken]:
    """Control tokens, and those of the user's own, which are found in any text."""
    from tokenizers import AddedToken

    # Phi-3's control tokens swallow the space after them, which GGUF has no key for: llama.cpp goes by the name too.
    name = read_text(metadata, "general.name").lower()
    swallow = special if "phi-3" in name or "phi3" in name else frozenset()
    keep = {"<unk>", "<s>", "<|endoftext|>"}

    def added(id: int) -> AddedToken:
        text = tokens.texts[id]
        return AddedToken(text, normalized=False, special=id in special, rstrip=id in swallow and text not in keep)

    return {id: added(id) for id in special.union(tokens.of(USER_DEFINED))}


def _named_ends(metadata: Mapping[str, Any], tokens: Tokens, recipe: Recipe) -> frozenset[int]:
    """The ends that the file's own keys name."""
    keys = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
    found = (read_id(metadata, key, tokens, recipe.eos if key == "eos" else None) for key in keys)
    return frozenset(id for id in found if id is not None)
