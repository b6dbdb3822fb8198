"""Answers of /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from poot_batch.request import TokenLogprob
from poot_models.text import Tokenizer
from poot_serve.emit.answer import Asked, Heading
from poot_serve.emit.logprobs import CompletionLogprobsWriter
from poot_serve.emit.sse import TextEvents, events
from poot_serve.emit.transcript import Piece
from poot_serve.protocol.completions import Completion, CompletionChoice, CompletionLogprobs
from poot_serve.protocol.report import Report
from poot_serve.protocol.usage import Usage


class CompletionAnswer:
    """Chunks and the whole answer have one shape; the finish reason has a chunk of its own, with an empty text."""

    def __init__(self, heading: Heading, tokenizer: Tokenizer, asked: Asked) -> None:
        self._heading = heading
        self._tokenizer = tokenizer
        self._asked = asked
        self._writers: dict[int, CompletionLogprobsWriter] = {}
        self._texts: dict[int, TextEvents] = {}
        self._usage: UnsetType | None = None if asked.include_usage else UNSET

    def chunks(self, index: int, piece: Piece) -> list[Completion]:
        made: list[Completion] = []
        if not piece.empty:
            shown = self._shown(index, piece.logprobs, piece.opens)
            made.append(self._made([CompletionChoice(index, piece.text, shown, None)], self._usage))
        if piece.finish is not None:
            made.append(self._made([CompletionChoice(index, "", None, piece.finish)], self._usage))
        return made

    def events(self, index: int, piece: Piece) -> bytes:
        # Most pieces are one token's text.
        if piece.finish is not None or self._asked.logprobs or not piece.text:
            return events(self.chunks(index, piece))
        made = self._texts.get(index)
        if made is None:
            made = self._texts[index] = TextEvents(
                lambda text: self._made([CompletionChoice(index, text, None, None)], self._usage)
            )
        return made(piece.text)

    def last_chunk(self, usage: Usage, report: Report | None) -> Completion | None:
        if not self._asked.include_usage and report is None:
            return None
        return self._made([], usage if self._asked.include_usage else UNSET, report)

    def whole(self, choices: Sequence[Sequence[Piece]], usage: Usage, report: Report | None) -> Completion:
        made = [self._whole_choice(index, pieces) for index, pieces in enumerate(choices)]
        return self._made(made, usage, report)

    def _whole_choice(self, index: int, pieces: Sequence[Piece]) -> CompletionChoice:
        text = "".join([piece.text for piece in pieces])
        shown = None
        if self._asked.logprobs:
            entries = [entry for piece in pieces for entry in piece.logprobs]
            shown = self._shown(index, entries, pieces[0].opens)
        return CompletionChoice(index, text, shown, pieces[-1].finish or "stop")

    def _shown(self, index: int, entries: Sequence[TokenLogprob], opens: int | None) -> CompletionLogprobs | None:
        if not self._asked.logprobs:
            return None
        writer = self._writers.get(index)
        if writer is None:
            writer = self._writers[index] = CompletionLogprobsWriter(self._tokenizer, self._asked.echo(index))
        return writer.push(entries, opens)

    def _made(
        self, choices: list[CompletionChoice], usage: Usage | UnsetType | None, report: Report | None = None
    ) -> Completion:
        heading = self._heading
        return Completion(
            id=heading.id,
            created=heading.created,
            model=heading.model,
            system_fingerprint=heading.system_fingerprint,
            choices=choices,
            usage=usage,
            poot=UNSET if report is None else report,
        )
