"""Answers of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from poot_models.text import Tokenizer
from poot_serve.emit.answer import Asked, Heading
from poot_serve.emit.logprobs import chat_logprobs
from poot_serve.emit.sse import TextEvents, events
from poot_serve.emit.transcript import Piece
from poot_serve.protocol.chat import (
    AnswerMessage,
    ChatChunk,
    ChatCompletion,
    ChatLogprobs,
    Choice,
    ChunkChoice,
    Delta,
)
from poot_serve.protocol.report import Report
from poot_serve.protocol.usage import Usage


class ChatAnswer:
    """The role is in each choice's first delta alone; the finish reason has a chunk of its own, with an empty delta."""

    def __init__(self, heading: Heading, tokenizer: Tokenizer, asked: Asked) -> None:
        self._heading = heading
        self._tokenizer = tokenizer
        self._asked = asked
        self._begun: set[int] = set()
        self._texts: dict[int, TextEvents] = {}

    def chunks(self, index: int, piece: Piece) -> list[ChatChunk]:
        made: list[ChatChunk] = []
        if index not in self._begun:
            self._begun.add(index)
            made.append(self._choice(index, Delta("assistant", piece.text), self._shown(piece), None))
        elif not piece.empty:
            made.append(self._choice(index, Delta(UNSET, piece.text), self._shown(piece), None))
        if piece.finish is not None:
            made.append(self._choice(index, Delta(), None, piece.finish))
        return made

    def events(self, index: int, piece: Piece) -> bytes:
        # Most pieces are one token's text.
        if piece.finish is not None or piece.logprobs or not piece.text or index not in self._begun:
            return events(self.chunks(index, piece))
        made = self._texts.get(index)
        if made is None:
            made = self._texts[index] = TextEvents(lambda text: self._choice(index, Delta(UNSET, text), None, None))
        return made(piece.text)

    def last_chunk(self, usage: Usage, report: Report | None) -> ChatChunk | None:
        return self._chunk([], usage, report) if self._asked.include_usage or report is not None else None

    def whole(self, choices: Sequence[Sequence[Piece]], usage: Usage, report: Report | None) -> ChatCompletion:
        heading = self._heading
        return ChatCompletion(
            id=heading.id,
            created=heading.created,
            model=heading.model,
            system_fingerprint=heading.system_fingerprint,
            choices=[self._whole_choice(index, pieces) for index, pieces in enumerate(choices)],
            usage=usage,
            poot=UNSET if report is None else report,
        )

    def _whole_choice(self, index: int, pieces: Sequence[Piece]) -> Choice:
        text = "".join([piece.text for piece in pieces])
        shown = None
        if self._asked.logprobs:
            shown = chat_logprobs([entry for piece in pieces for entry in piece.logprobs], self._tokenizer)
        return Choice(index, AnswerMessage("assistant", text), shown, pieces[-1].finish or "stop")

    def _shown(self, piece: Piece) -> ChatLogprobs | None:
        return chat_logprobs(piece.logprobs, self._tokenizer) if self._asked.logprobs and piece.logprobs else None

    def _choice(self, index: int, delta: Delta, logprobs: ChatLogprobs | None, finish: str | None) -> ChatChunk:
        return self._chunk([ChunkChoice(index, delta, logprobs, finish)], None)

    def _chunk(self, choices: list[ChunkChoice], usage: Usage | None, report: Report | None = None) -> ChatChunk:
        heading = self._heading
        return ChatChunk(
            id=heading.id,
            created=heading.created,
            model=heading.model,
            system_fingerprint=heading.system_fingerprint,
            choices=choices,
            usage=usage if self._asked.include_usage else UNSET,
            poot=UNSET if report is None else report,
        )
