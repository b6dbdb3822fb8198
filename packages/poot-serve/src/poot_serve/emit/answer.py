"""What a route needs of an answer's shape, and what all shapes share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from poot_serve.emit.transcript import Piece
from poot_serve.protocol.usage import Usage


@dataclass(frozen=True, slots=True)
class Heading:
    """What every chunk of an answer repeats. `created` is in seconds since 1970."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class Answer(Protocol):
    """One request's answer in its wire shape. Pieces are given in order, either to `chunks` or to `whole`."""

    def chunks(self, piece: Piece) -> Sequence[msgspec.Struct]:
        """The stream events of `piece`: none if it adds nothing, two if it both adds and ends."""

    def usage_chunk(self, usage: Usage) -> msgspec.Struct:
        """The event that carries usage alone."""

    def whole(self, pieces: list[Piece], usage: Usage) -> msgspec.Struct:
        """The buffered answer."""
