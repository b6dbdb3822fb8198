"""Token ids to text as they come."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poot_models.text.tokenizer import Tokenizer

__all__ = ["Detokenizer"]

# Looked up once, not for each choice of each request.
_UTF8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one growing sequence of tokens.

    What ``push`` and ``finish`` return, joined, is ``tokenizer.decode`` of all the ids, however they were split. A
    character whose bytes are not all there is held back, never sent as U+FFFD. ``continues``: the text goes on from an
    earlier one (a completion after its prompt), so its first space is its own and stays.

    Each token costs a time that does not grow with the text.
    """

    __slots__ = ("_decoder", "_holds", "_skip_special", "_strip", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True, continues: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._strip = tokenizer.strip_space and not continues
        self._decoder: codecs.IncrementalDecoder | None = None  # made for the first text that is not ASCII
        self._holds = False  # whether the decoder holds the beginning of a character

    def push(self, ids: Sequence[int]) -> str:
        """The text that is certain now that ``ids`` have come."""
        raw = self._tokenizer.join(ids, skip_special=self._skip_special)
        if not self._holds and raw.isascii():
            return self._emit(raw.decode("ascii"))
        if self._decoder is None:
            self._decoder = _UTF8("replace")
        text = self._decoder.decode(raw)
        self._holds = bool(self._decoder.getstate()[0])
        return self._emit(text)

    def finish(self) -> str:
        """What was held back, with U+FFFD for a character that never became whole."""
        return "" if self._decoder is None else self._emit(self._decoder.decode(b"", final=True))

    def _emit(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text
