"""How one model reads text: with control tokens, without them, and beside text that a client wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from poot_models.errors import TokenizerError
from poot_models.text.library import library_errors

if TYPE_CHECKING:
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as Encoder
    from tokenizers.models import Model
    from tokenizers.normalizers import Normalizer
    from tokenizers.pre_tokenizers import PreTokenizer

__all__ = ["GUARD", "ByteFallback", "Encoders", "View", "build_encoders", "hidden_name", "reachable"]

# A Unicode noncharacter: not meant for interchange, so taking it out of a client's text loses nothing.
GUARD = "\ufdd0"
# Characters; Gemma 3's 6,414 such tokens have 75,784 in all, and at most 31 each.
_MAX_ADDED = 1024
_MAX_ALL_ADDED = 1 << 20
# Characters. To encode such a text takes less time than to get the interpreter lock back from another thread.
_SHORT = 256
_ENCODING = library_errors("the text cannot be encoded")


@dataclass(frozen=True, slots=True)
class ByteFallback:
    """What the Unigram model does not know becomes the tokens of its bytes. ``ids``: of each byte, in their order."""

    unknown: int
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class View:
    """One reading of text.

    ``aliases``: ids that the library gave to added tokens, which the model has under a hidden name (``hidden_name``) or
    not at all -> the tokens' ids.
    """

    encoder: Encoder
    aliases: Mapping[int, int] = field(default_factory=dict)
    fallback: ByteFallback | None = None

    def ids(self, text: str) -> list[int]:
        """The token ids of ``text``. Raises ``TokenizerError`` if the library fails."""
        with _ENCODING:
            if len(text) <= _SHORT:
                ids: list[int] = self.encoder.encode(text, add_special_tokens=False).ids
            else:
                # The batch call lets go of the interpreter lock and computes no offsets.
                ids = self.encoder.encode_batch_fast([text], add_special_tokens=False)[0].ids
            if self.fallback is not None and self.fallback.unknown in ids:
                ids = self._with_bytes(text, self.fallback)
        if self.aliases and not self.aliases.keys().isdisjoint(ids):
            ids = [self.aliases.get(id, id) for id in ids]
        return ids

    def _with_bytes(self, text: str, fallback: ByteFallback) -> list[int]:
        # An unknown token carries its text, which the fast call leaves out.
        encoding = self.encoder.encode_batch([text], add_special_tokens=False)[0]
        ids: list[int] = []
        for id, piece in zip(encoding.ids, encoding.tokens, strict=True):
            if id == fallback.unknown:
                ids += [fallback.ids[byte] for byte in piece.encode()]
            else:
                ids.append(id)
        return ids


@dataclass(frozen=True, slots=True)
class Encoders:
    """Three views of one model. ``plain`` reads control-token text as text, ``special`` as the tokens, and ``guarded``
    is ``special`` after which GUARD characters vanish (see ``Tokenizer.guard``)."""

    plain: View
    special: View
    guarded: View


def build_encoders(
    model: Model,
    added: Mapping[int, AddedToken],
    special: frozenset[int],
    *,
    normalizers: Sequence[Normalizer] = (),
    pre_tokenizer: PreTokenizer | None = None,
    fallback: ByteFallback | None = None,
) -> Encoders:
    """The views of ``model``, from whose text no control token may come (``reachable``).

    ``added``: the tokens that are found in a text before the model sees it; those of ``special``, the control tokens,
    only where control tokens are parsed, spelt exactly, and longer than one character. Raises ``TokenizerError`` if
    they are longer than any real ones.
    """
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as Encoder
    from tokenizers.normalizers import Replace
    from tokenizers.normalizers import Sequence as InTurn

    def view(found: Mapping[int, AddedToken], steps: Sequence[Normalizer]) -> View:
        encoder = Encoder(model)  # the model itself is shared
        if pre_tokenizer is not None:
            encoder.pre_tokenizer = pre_tokenizer
        if steps:
            encoder.normalizer = steps[0] if len(steps) == 1 else InTurn(list(steps))
        encoder.add_tokens(list(found.values()))
        given = {encoder.token_to_id(token.content): id for id, token in found.items()}
        aliases = {alias: id for alias, id in given.items() if alias is not None and alias != id}
        return View(encoder, aliases, fallback)

    def raw(token: AddedToken) -> AddedToken:
        # Found in the text as it came: what normalisation makes of it may spell a name that a client did not, and once
        # GUARDs are taken out, they guard nothing.
        strips = {"lstrip": token.lstrip, "rstrip": token.rstrip}
        return AddedToken(token.content, **strips, single_word=token.single_word, normalized=False, special=True)

    _check_added(added)
    plain = {id: added[id] for id in sorted(added) if id not in special and added[id].content}
    # No GUARD fits into a name of one character, so text could not be told from the token: it is never found.
    control = {id: raw(added[id]) for id in sorted(added) if id in special and len(added[id].content) > 1}
    both = dict(sorted((plain | control).items()))
    return Encoders(
        plain=view(plain, normalizers),
        special=view(both, normalizers),
        guarded=view(both, [Replace(GUARD, ""), *normalizers]),
    )


def _check_added(added: Mapping[int, AddedToken]) -> None:
    # The library builds an automaton of them, in a time that goes with the square of the longest in its older releases.
    sizes = {id: len(token.content) for id, token in added.items()}
    if long := next((id for id, size in sizes.items() if size > _MAX_ADDED), None):
        raise TokenizerError(
            f"token {long} is a control or added token of {sizes[long]} characters; the most is {_MAX_ADDED}"
        )
    if (size := sum(sizes.values())) > _MAX_ALL_ADDED:
        raise TokenizerError(
            f"the control and added tokens have {size} characters in all; the most is {_MAX_ALL_ADDED}"
        )


def reachable(model: Model, names: Mapping[int, str]) -> set[int]:
    """The ids of ``names`` that a BPE or WordPiece model makes of plain text.

    The model's own name for a token is enough to try: whether merges join a span into one token does not depend on what
    stands around it.
    """
    with library_errors("the vocabulary cannot encode its own control tokens"):
        return {id for id, name in names.items() if any(token.id == id for token in model.tokenize(name))}


def hidden_name(id: int) -> str:
    """A name for a control token that no text becomes: what reaches a model has no space in it, since each kind of
    vocabulary makes spaces visible or cuts at them."""
    return f" {id}"
