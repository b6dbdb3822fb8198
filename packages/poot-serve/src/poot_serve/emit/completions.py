"""Answers of /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from poot_batch.request import TokenLogprob
from poot_models.text import Tokenizer
from poot_serve.emit.answer import Asked, Heading
from poot_serve.emit.logprobs import CompletionLogprobsWriter
from poot_serve.emit.transcript import Piece
from poot_serve.protocol.completions import Completion, CompletionChoice, CompletionLogprobs
from poot_serve.protocol.usage import Usage


class CompletionAnswer:
    """Chunks and the whole answer have one shape; the finish reason has a chunk of its own, with an empty text."""

    def __init__(self, heading: Heading, tokenizer: Tokenizer, asked: Asked) -> None:
        self._heading = heading
        self._tokenizer = tokenizer
        self._asked = asked
        self._writers: dict[int, CompletionLogprobsWriter] = {}
        self._usage: UnsetType | None = None if asked.include_usage else UNSET

    def chunks(self, index: int, piece: Piece) -> list[Completion]:
        made: list[Completion] = []
        if not piece.empty:
            shown = self._shown(index, piece.logprobs, piece.opens)
            made.append(self._made([CompletionChoice(index, piece.text, shown, None)], self._usage))
        if piece.finish is not None:
            made.append(self._made([CompletionChoice(index, "", None, piece.finish)], self._usage))
        return made

    def usage_chunk(self, usage: Usage) -> Completion:
        return self._made([], usage)

    def whole(self, choices: Sequence[Sequence[Piece]], usage: Usage) -> Completion:
        return self._made([self._whole_choice(index, pieces) for index, pieces in enumerate(choices)], usage)

    def _whole_choice(self, index: int, pieces: Sequence[Piece]) -> CompletionChoice:
        text = "".join(piece.text for piece in pieces)
        entries = [entry for piece in pieces for entry in piece.logprobs]
        return CompletionChoice(index, text, self._shown(index, entries, pieces[0].opens), pieces[-1].finish or "stop")

    def _shown(self, index: int, entries: Sequence[TokenLogprob], opens: int | None) -> CompletionLogprobs | None:
        if not self._asked.logprobs:
            return None
        writer = self._writers.get(index)
        if writer is None:
            writer = self._writers[index] = CompletionLogprobsWriter(self._tokenizer, self._asked.echo(index))
        return writer.push(entries, opens)

    def _made(self, choices: list[CompletionChoice], usage: Usage | UnsetType | None) -> Completion:
        heading = self._heading
        return Completion(
            id=heading.id,
            created=heading.created,
            model=heading.model,
            system_fingerprint=heading.system_fingerprint,
            choices=choices,
            usage=usage,
        )
