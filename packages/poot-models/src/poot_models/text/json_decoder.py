"""The decoder of a tokenizer.json, as the bytes of each token."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poot_models.errors import TokenizerError
from poot_models.text.vocabulary import (
    CONTINUES,
    SPACE,
    byte_level_alphabet,
    byte_level_pieces,
    sentencepiece_pieces,
    wordpiece_pieces,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Encoder

__all__ = ["decoded_pieces"]

_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
# SentencePiece's: spaces made visible again, bytes, all joined into one text, its first space dropped. In another order
# or number the steps do other things: without Fuse, Strip takes a space from every token.
_SENTENCEPIECE = re.compile(r"(Replace )(ByteFallback )?((Fuse )+(Strip )?)?(Fuse )*")
_METASPACE = re.compile(r"(ByteFallback )?Metaspace (Fuse )*|Metaspace ByteFallback (Fuse )*")
_BYTE_LEVEL = re.compile(r"ByteLevel (Fuse )*")
_USUAL = {
    "Replace": {"pattern": {"String": SPACE}, "content": " "},
    "Strip": {"content": " ", "start": 1, "stop": 0},
}
_MOST_TOLD = 400


def decoded_pieces(
    encoder: Encoder, texts: Sequence[str], added: Iterable[int], special: frozenset[int], path: Path
) -> tuple[list[bytes], bool, bool]:
    """(the bytes of each token, whether decoding drops the first space, whether BPE has a token for each byte), from
    the file's ``decoder``.

    Raises ``TokenizerError`` if its steps are not, in their order and settings, byte-level BPE's, SentencePiece's or
    WordPiece's.
    """
    state: dict[str, Any] = json.loads(encoder.decoder.__getstate__()) if encoder.decoder is not None else {}
    steps: list[dict[str, Any]] = state.get("decoders", [state])
    named = "".join(f"{_named(step)} " for step in steps)
    if _BYTE_LEVEL.fullmatch(named):
        alphabet = {chr(stand_in) for stand_in in byte_level_alphabet()}
        whole = len(alphabet.intersection(texts)) == len(alphabet)
        return byte_level_pieces(texts, added), False, whole
    if named == "WordPiece ":
        return wordpiece_pieces(texts, special, steps[0].get("prefix", CONTINUES)), True, False
    if not (_SENTENCEPIECE.fullmatch(named) or _METASPACE.fullmatch(named)):
        told = named.strip()[:_MOST_TOLD] or "none"
        raise TokenizerError(
            f"{path} has a decoder poot does not know ({told}); it knows ByteLevel, WordPiece, and SentencePiece's: "
            "Metaspace, or Replace of U+2581 by a space, ByteFallback, Fuse, and Strip of one space before the text"
        )
    bytes_too = [id for id, text in enumerate(texts) if _BYTE.fullmatch(text)] if "ByteFallback " in named else []
    # Of a first token with several, the library's Metaspace drops all: SentencePiece itself, only one.
    strip = "Strip " in named or any(
        step["type"] == "Metaspace" and step.get("prepend_scheme") != "never" for step in steps
    )
    whole = type(encoder.model).__name__ == "BPE" and len(bytes_too) == 256
    return sentencepiece_pieces(texts, bytes_too, special), strip, whole


def _named(step: Mapping[str, Any]) -> str:
    """The kind of a step, followed by its settings where they are not SentencePiece's."""
    kind = str(step.get("type", ""))
    settings = {name: value for name, value in step.items() if name != "type"}
    usual = settings.get("replacement") == SPACE if kind == "Metaspace" else settings == _USUAL.get(kind, settings)
    return kind if usual else f"{kind}{json.dumps(settings, ensure_ascii=False)}"
