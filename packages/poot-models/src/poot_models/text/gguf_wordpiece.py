"""WordPiece vocabularies of GGUF files (``bert``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from poot_models.errors import TokenizerError
from poot_models.text.encoders import hidden_name, reachable
from poot_models.text.gguf_keys import Tokens, read_flag, read_id
from poot_models.text.gguf_recipe import Recipe
from poot_models.text.library import library_errors
from poot_models.text.vocabulary import CONTINUES, SPACE, UNBOUNDED, wordpiece_pieces

if TYPE_CHECKING:
    from tokenizers.models import WordPiece

__all__ = ["wordpiece"]

_MAX_WORD = 100  # characters of a word that BERT's tokenizer cuts up; a longer one is unknown


def wordpiece(metadata: Mapping[str, Any], tokens: Tokens, special: frozenset[int]) -> Recipe:
    """BERT's tokenizer. A GGUF file marks the beginning of a word where BERT marks its continuation.

    Text is cleaned and, unless the file's keys say otherwise, lower-cased and without accents, so what is encoded does
    not decode to itself.
    """
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer

    unknown = read_id(metadata, "unknown", tokens, 100)
    if unknown is None:
        raise TokenizerError(
            "the WordPiece vocabulary has no unknown token; tokenizer.ggml.unknown_token_id must name one of its ids"
        )
    names = [
        text if id in special else text[1:] if text.startswith(SPACE) else CONTINUES + text
        for id, text in enumerate(tokens.texts)
    ]
    ids = {name: id for id, name in enumerate(names)}
    if len(ids) != len(names):
        name = next(name for id, name in enumerate(names) if ids[name] != id)
        raise TokenizerError(f"tokenizer.ggml.tokens has the WordPiece token {name[:64]!r} twice")
    lowercase = read_flag(metadata, "normalizer.lowercase", True)
    return Recipe(
        model=lambda: _model(names, special, unknown),
        pieces=wordpiece_pieces(names, special),
        longest=UNBOUNDED,
        strip_space=True,
        normalizers=[
            BertNormalizer(
                clean_text=True,
                handle_chinese_chars=True,
                strip_accents=read_flag(metadata, "normalizer.strip_accents", lowercase),
                lowercase=lowercase,
            )
        ],
        pre_tokenizer=BertPreTokenizer(),
        bos=read_id(metadata, "cls", tokens, 101),
        add_bos=True,
        separator=read_id(metadata, "seperator", tokens, 102),  # so spelt in the format
    )


def _model(names: Sequence[str], special: frozenset[int], unknown: int) -> WordPiece:
    from tokenizers.models import WordPiece

    def made(names: Sequence[str]) -> WordPiece:
        ids = {name: id for id, name in enumerate(names)}
        with library_errors("tokenizer.ggml.tokens does not make a WordPiece model"):
            return WordPiece(
                ids, unk_token=names[unknown], max_input_chars_per_word=_MAX_WORD, continuing_subword_prefix=CONTINUES
            )

    model = made(names)
    hidden = reachable(model, {id: names[id] for id in special})
    return made([hidden_name(id) if id in hidden else name for id, name in enumerate(names)]) if hidden else model
