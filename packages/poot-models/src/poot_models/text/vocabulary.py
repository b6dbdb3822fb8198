"""The bytes of every token, and which tokens end a generation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from poot_models.errors import TokenizerError

__all__ = [
    "CONTINUES",
    "MAX_UNIGRAM_BYTES",
    "SPACE",
    "UNBOUNDED",
    "Vocabulary",
    "byte_level_alphabet",
    "byte_level_pieces",
    "end_names",
    "sentencepiece_pieces",
    "wordpiece_pieces",
]

SPACE = "\u2581"  # SentencePiece's visible space
CONTINUES = "##"  # before a WordPiece token that goes on with a word
UNBOUNDED = 1 << 62
# Of all tokens together, far beyond real ones. The library takes some 350 bytes of memory for each.
MAX_UNIGRAM_BYTES = 1 << 23

# As llama.cpp's list of end-of-generation names (llama_vocab::impl::load), for files whose metadata names only one.
_END_NAMES = frozenset(
    [
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|tool_response>",
        "<｜end▁of▁sentence｜>",
        "[e~[",
    ]
)
# Padding and repository marks of code models end a generation too, and so does "</s>"; but the last is also HTML's
# end of struck-out text, so these names count only where the file itself says that the token is a control token.
_CONTROL_END_NAMES = frozenset(
    [
        "</s>",
        "<|fim_pad|>",
        "<fim-pad>",
        "<fim_pad>",
        "<PAD>",
        "[PAD]",
        "<|fim_repo|>",
        "<|repo_name|>",
        "<fim-repo>",
        "<REPO>",
        "<reponame>",
        "<|file_sep|>",
    ]
)
# In a vocabulary with all the names on the left, the name on the right ends a message, not the generation.
_NOT_THE_END = (
    (frozenset({"<|return|>", "<|call|>"}), "<|end|>"),
    (frozenset({"<|flush|>", "<|calls|>"}), "<|end|>"),
    (frozenset({"<|tool_response>"}), "</s>"),
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What every token id means. An id without a token has the empty piece.

    ``pieces``: the bytes that a token adds to a text. ``special``: ids of control tokens, left out of decoded text.
    ``eog_ids``: ids that end a generation. ``strip_space``: whether a decoded text loses its first space, which the
    encoder put there (SentencePiece's space prefix). ``longest``: most characters of a text that one token may stand
    for, UNBOUNDED where it has no limit (an unknown token for a word, say).
    """

    pieces: Sequence[bytes]
    special: frozenset[int]
    bos_id: int | None
    eos_id: int | None
    eog_ids: frozenset[int]
    strip_space: bool = False
    longest: int = UNBOUNDED

    def __post_init__(self) -> None:
        for name, value in (("BOS", self.bos_id), ("EOS", self.eos_id), *(("end", i) for i in self.eog_ids)):
            if value is not None and not 0 <= value < len(self.pieces):
                raise TokenizerError(f"the {name} token id {value} is outside the vocabulary of {len(self.pieces)}")


def end_names(ids: Mapping[str, int], control: Callable[[int], bool]) -> frozenset[int]:
    """The ids whose names are known to end a generation. ``control(id)``: the file calls the token a control token."""
    found = {name for name in _END_NAMES if name in ids}
    found |= {name for name in _CONTROL_END_NAMES if name in ids and control(ids[name])}
    for signs, name in _NOT_THE_END:
        if signs <= found:
            found.discard(name)
    return frozenset(ids[name] for name in found)


def byte_level_alphabet() -> dict[int, int]:
    """Code point of each visible stand-in -> the byte it stands for (GPT-2's ``bytes_to_unicode``, inverted)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {byte: byte for byte in printable} | {256 + index: byte for index, byte in enumerate(hidden)}


def byte_level_pieces(tokens: Sequence[str], plain: Iterable[int] = ()) -> list[bytes]:
    """Bytes of byte-level tokens; the tokens of the ids in ``plain`` (added ones) are ordinary text.

    A token with a character outside the byte alphabet stands for its own UTF-8 bytes, as in Hugging Face's decoder.
    """
    alphabet = byte_level_alphabet()
    # One translation of the whole vocabulary: each stand-in is one character and one byte, so lengths stay.
    joined = "".join(tokens)
    stray = set(joined) - set(map(chr, alphabet))
    data = joined.translate({ord(char): 0 for char in stray} | alphabet).encode("latin-1")
    ends = list(accumulate(map(len, tokens)))
    pieces = [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    if stray:
        for index, token in enumerate(tokens):
            if not stray.isdisjoint(token):
                pieces[index] = token.encode()
    for index in plain:
        pieces[index] = tokens[index].encode()
    return pieces


def wordpiece_pieces(tokens: Sequence[str], special: Iterable[int], prefix: str = CONTINUES) -> list[bytes]:
    """Bytes of WordPiece tokens: one that starts with ``prefix`` goes on with a word, any other starts one, after a
    space. Tokens of the ids in ``special`` keep their text."""
    pieces = [token.removeprefix(prefix) if token.startswith(prefix) else " " + token for token in tokens]
    for index in special:
        pieces[index] = tokens[index]
    return [piece.encode() for piece in pieces]


def sentencepiece_pieces(tokens: Sequence[str], byte_ids: Iterable[int], plain: Iterable[int] = ()) -> list[bytes]:
    """Bytes of SentencePiece tokens: the visible space is a space, ``<0x41>`` (ids in ``byte_ids``) is one byte.

    Tokens of the ids in ``plain`` (control ones) keep their text. Raises ``TokenizerError`` for a malformed byte token.
    """
    pieces = [token.replace(SPACE, " ").encode() for token in tokens]
    for index in byte_ids:
        try:
            value = bytes.fromhex(tokens[index].removeprefix("<0x").removesuffix(">"))
        except ValueError:
            value = b""
        if len(value) != 1:
            raise TokenizerError(
                f"token {index} is a byte token but its text {tokens[index][:32]!r} is not like '<0x41>'"
            )
        pieces[index] = value
    for index in plain:
        pieces[index] = tokens[index].encode()
    return pieces
