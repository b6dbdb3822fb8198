"""What a route needs of an answer's shape, and what all shapes share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from poot_serve.emit.echo import Echo
from poot_serve.emit.transcript import Piece
from poot_serve.protocol.report import Report
from poot_serve.protocol.usage import Usage


# Structs, as one of each is made for each request: frozen dataclasses would take five times as long.
class Heading(msgspec.Struct, frozen=True):
    """What every chunk of an answer repeats. `created` is in seconds since 1970."""

    id: str
    created: int
    model: str
    system_fingerprint: str


class Asked(msgspec.Struct, frozen=True):
    """What a request asked of its answer's shape. `echoes`: the prompt before each choice, or nothing at all."""

    logprobs: bool = False
    include_usage: bool = False
    echoes: tuple[Echo, ...] = ()

    def echo(self, index: int) -> Echo | None:
        return self.echoes[index] if self.echoes else None


class Answer(Protocol):
    """One request's answer in its wire shape.

    The pieces of each choice are given in order, choices in any, either to `chunks` or to `whole`.
    """

    def chunks(self, index: int, piece: Piece) -> Sequence[msgspec.Struct]:
        """The stream events of choice `index`'s `piece`: none if it adds nothing, two if it both adds and ends."""

    def events(self, index: int, piece: Piece) -> bytes:
        """The same as server-sent events."""

    def last_chunk(self, usage: Usage, report: Report | None) -> msgspec.Struct | None:
        """The event without choices that ends a stream which asked for usage or a report, else None."""

    def whole(self, choices: Sequence[Sequence[Piece]], usage: Usage, report: Report | None) -> msgspec.Struct:
        """The buffered answer, from the pieces of each choice."""
