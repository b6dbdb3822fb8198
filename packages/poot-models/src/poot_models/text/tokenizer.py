"""Text to token ids and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from poot_models.errors import InvalidTextError, TokenizerError
from poot_models.text.encoders import GUARD

if TYPE_CHECKING:
    from poot_models.text.encoders import Encoders
    from poot_models.text.vocabulary import Vocabulary

__all__ = ["Tokenizer"]

_MAX_OPENINGS = 64


def _openings(names: frozenset[str]) -> str:
    """A pattern of the first character of each name, followed by more of a name: as much as few patterns can say, for
    text full of such characters is looked at closely at each of them."""
    for size in (6, 4, 2):
        if len({name[:size] for name in names}) <= _MAX_OPENINGS:
            break
    follows: dict[str, set[str]] = {}
    for name in names:
        follows.setdefault(name[0], set()).add(re.escape(name[1:size]))
    return "|".join(f"{re.escape(first)}(?={'|'.join(sorted(rest))})" for first, rest in sorted(follows.items()))


class Tokenizer:
    """One model's tokenizer. Immutable, and safe to use from several threads at once."""

    def __init__(
        self,
        encoders: Encoders | None,
        vocabulary: Vocabulary,
        *,
        prefix: Sequence[int] = (),
        suffix: Sequence[int] = (),
    ) -> None:
        """``encoders``: None for one that only decodes."""
        self._encoders = encoders
        self._vocabulary = vocabulary
        self._pieces = vocabulary.pieces
        self._special = vocabulary.special
        self._prefix = list(prefix)
        self._suffix = list(suffix)
        names = {vocabulary.pieces[id].decode("utf-8", "replace") for id in vocabulary.special}
        self._controls = frozenset(name for name in names if len(name) > 1)
        self._control_sizes = sorted({len(name) for name in self._controls})
        self._control_first = re.compile(_openings(self._controls)) if self._controls else None

    @property
    def vocab_size(self) -> int:
        """Tokens in the vocabulary. A model's logits may be padded to more."""
        return len(self._pieces)

    @property
    def longest(self) -> int:
        """Most characters that one token stands for: a text of n characters has at least n / longest tokens.

        More than any text has where an unknown token may stand for all of it.
        """
        return self._vocabulary.longest

    @property
    def bos_id(self) -> int | None:
        return self._vocabulary.bos_id

    @property
    def eos_id(self) -> int | None:
        return self._vocabulary.eos_id

    @property
    def eog_ids(self) -> frozenset[int]:
        """Every token that ends a generation: EOS, and the ends of turns and messages."""
        return self._vocabulary.eog_ids

    @property
    def add_bos(self) -> bool:
        return self.bos_id is not None and self.bos_id in self._prefix

    @property
    def add_eos(self) -> bool:
        return self.eos_id is not None and self.eos_id in self._suffix

    @property
    def strip_space(self) -> bool:
        """Whether decoding drops the first space of a text (SentencePiece's space prefix)."""
        return self._vocabulary.strip_space

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """The token ids of ``text``.

        ``parse_special``: the text of a control token becomes that token (for a rendered chat); otherwise it stays
        text. ``add_special``: add what the model's file says every text begins and ends with, normally BOS. With both,
        a text that already begins with BOS gets no second one, so a rendered chat may be encoded with both.

        The time goes with the length of ``text``. Raises ``InvalidTextError`` if ``text`` has a lone surrogate, and
        ``TokenizerError`` if this tokenizer was loaded without what encoding needs.
        """
        if self._encoders is None:
            raise TokenizerError("this tokenizer only decodes: it was loaded with encodes=False")
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise InvalidTextError(
                    f"the text has a lone surrogate, U+{ord(text[error.start]):04X}, at character {error.start}; "
                    "send well-formed Unicode"
                ) from None
        view = self._encoders.plain
        if parse_special:
            view = self._encoders.guarded if GUARD in text else self._encoders.special
        ids = view.ids(text)
        if not add_special:
            return ids
        size = len(self._prefix)
        prefix = [] if parse_special and size and ids[:size] == self._prefix else self._prefix
        return prefix + ids + self._suffix

    def guard(self, text: str) -> str:
        """``text`` with every control token's text broken by a GUARD, so that ``encode(..., parse_special=True)`` of a
        chat rendered from it reads that part as the plain text it is. GUARDs already in ``text`` are dropped."""
        text = text.replace(GUARD, "")
        return text if self._control_first is None else self._control_first.sub(self._break, text)

    def _break(self, first: re.Match[str]) -> str:
        text, start = first.string, first.start()
        if any(text[start : start + size] in self._controls for size in self._control_sizes):
            return first.group() + GUARD
        return first.group()

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of ``ids``; bytes that are not UTF-8 become U+FFFD, one for each maximal subpart (Unicode 3.9).

        Ids outside the vocabulary have no text. The first space goes where the encoder adds one (``strip_space``).
        """
        text = self.join(tuple(ids), skip_special=skip_special).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.strip_space else text

    def join(self, ids: Sequence[int], *, skip_special: bool = True) -> bytes:
        """The bytes of ``ids`` in a row, without control tokens unless ``skip_special`` is false."""
        pieces, size = self._pieces, len(self._pieces)
        if skip_special:
            special = self._special
            if len(ids) == 1:  # a step's token, of each row
                (id,) = ids
                return pieces[id] if 0 <= id < size and id not in special else b""
            return b"".join([pieces[id] for id in ids if 0 <= id < size and id not in special])
        return b"".join([pieces[id] for id in ids if 0 <= id < size])

    def token_bytes(self, id: int) -> bytes:
        """The bytes that a token adds to a text; a control token gives the bytes of its name.

        Raises ``TokenizerError`` if ``id`` is outside the vocabulary.
        """
        if not 0 <= id < len(self._pieces):
            raise TokenizerError(f"token id {id} is outside the vocabulary of {len(self._pieces)}")
        return self._pieces[id]

    def token_text(self, id: int) -> str:
        """``token_bytes`` as text, with U+FFFD where a token holds only part of a character."""
        return self.token_bytes(id).decode("utf-8", "replace")

    def is_special(self, id: int) -> bool:
        """Whether ``id`` is a control token, which decoded text leaves out."""
        return id in self._special
