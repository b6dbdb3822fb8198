"""Answers of /v1/completions."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from poot_models.text import Tokenizer
from poot_serve.emit.answer import Heading
from poot_serve.emit.logprobs import CompletionLogprobsWriter
from poot_serve.emit.transcript import Piece
from poot_serve.protocol.completions import Completion, CompletionChoice, CompletionLogprobs
from poot_serve.protocol.usage import Usage


class CompletionAnswer:
    """Chunks and the whole answer have one shape; the finish reason has a chunk of its own, with an empty text."""

    def __init__(self, heading: Heading, tokenizer: Tokenizer, *, logprobs: bool, include_usage: bool) -> None:
        self._heading = heading
        self._writer = CompletionLogprobsWriter(tokenizer) if logprobs else None
        self._usage: UnsetType | None = None if include_usage else UNSET

    def chunks(self, piece: Piece) -> list[Completion]:
        made: list[Completion] = []
        if not piece.empty:
            shown = self._writer.push(piece.logprobs) if self._writer is not None else None
            made.append(self._made([CompletionChoice(0, piece.text, shown, None)], self._usage))
        if piece.finish is not None:
            made.append(self._made([CompletionChoice(0, "", None, piece.finish)], self._usage))
        return made

    def usage_chunk(self, usage: Usage) -> Completion:
        return self._made([], usage)

    def whole(self, pieces: list[Piece], usage: Usage) -> Completion:
        text = "".join(piece.text for piece in pieces)
        shown: CompletionLogprobs | None = None
        if self._writer is not None:
            shown = self._writer.push([entry for piece in pieces for entry in piece.logprobs])
        return self._made([CompletionChoice(0, text, shown, pieces[-1].finish or "stop")], usage)

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
