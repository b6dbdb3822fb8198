"""Answers of /v1/chat/completions."""

from __future__ import annotations

from msgspec import UNSET

from poot_models.text import Tokenizer
from poot_serve.emit.answer import Heading
from poot_serve.emit.logprobs import chat_logprobs
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
from poot_serve.protocol.usage import Usage


class ChatAnswer:
    """The role is in the first delta alone; the finish reason has a chunk of its own, with an empty delta."""

    def __init__(self, heading: Heading, tokenizer: Tokenizer, *, logprobs: bool, include_usage: bool) -> None:
        self._heading = heading
        self._tokenizer = tokenizer
        self._logprobs = logprobs
        self._include_usage = include_usage
        self._begun = False

    def chunks(self, piece: Piece) -> list[ChatChunk]:
        made: list[ChatChunk] = []
        if not self._begun:
            self._begun = True
            made.append(self._choice(Delta("assistant", piece.text), self._shown(piece), None))
        elif not piece.empty:
            made.append(self._choice(Delta(UNSET, piece.text), self._shown(piece), None))
        if piece.finish is not None:
            made.append(self._choice(Delta(), None, piece.finish))
        return made

    def usage_chunk(self, usage: Usage) -> ChatChunk:
        return self._chunk([], usage)

    def whole(self, pieces: list[Piece], usage: Usage) -> ChatCompletion:
        text = "".join(piece.text for piece in pieces)
        entries = [entry for piece in pieces for entry in piece.logprobs]
        finish = pieces[-1].finish or "stop"
        heading = self._heading
        shown = chat_logprobs(entries, self._tokenizer) if self._logprobs else None
        return ChatCompletion(
            id=heading.id,
            created=heading.created,
            model=heading.model,
            system_fingerprint=heading.system_fingerprint,
            choices=[Choice(0, AnswerMessage("assistant", text), shown, finish)],
            usage=usage,
        )

    def _shown(self, piece: Piece) -> ChatLogprobs | None:
        return chat_logprobs(piece.logprobs, self._tokenizer) if self._logprobs and piece.logprobs else None

    def _choice(self, delta: Delta, logprobs: ChatLogprobs | None, finish: str | None) -> ChatChunk:
        return self._chunk([ChunkChoice(0, delta, logprobs, finish)], None)

    def _chunk(self, choices: list[ChunkChoice], usage: Usage | None) -> ChatChunk:
        heading = self._heading
        return ChatChunk(
            id=heading.id,
            created=heading.created,
            model=heading.model,
            system_fingerprint=heading.system_fingerprint,
            choices=choices,
            usage=usage if self._include_usage else UNSET,
        )
