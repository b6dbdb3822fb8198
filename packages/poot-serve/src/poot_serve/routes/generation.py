"""What both generation routes do: read, lower, submit, and answer streamed or buffered."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from starlette.types import Receive, Scope, Send

from poot_serve.emit.answer import Answer, Asked
from poot_serve.emit.chat import ChatAnswer
from poot_serve.emit.completions import CompletionAnswer
from poot_serve.emit.echo import Echo
from poot_serve.emit.sse import DONE, event, events
from poot_serve.emit.transcript import Piece
from poot_serve.errors import ClientGoneError
from poot_serve.limits.body import read_body
from poot_serve.limits.head import body_length
from poot_serve.lower.decode import decode_body
from poot_serve.lower.generation import Lowered
from poot_serve.lower.unbuilt import Unbuilt
from poot_serve.metrics import RequestTimer
from poot_serve.protocol.errors import FALLBACK, ErrorBody, wire_error
from poot_serve.protocol.request import GenerationFields
from poot_serve.routes.answers import json_response
from poot_serve.routes.choices import Choices, open_choices
from poot_serve.routes.client import present
from poot_serve.routes.event_stream import EventStream
from poot_serve.service import Service

T = TypeVar("T", bound=GenerationFields)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Api(Generic[T]):
    """What tells one generation API from another."""

    kind: type[T]
    unbuilt: Unbuilt
    id_prefix: str
    lower: Callable[[T, Service], Lowered]
    answer: type[ChatAnswer] | type[CompletionAnswer]


@dataclass(frozen=True, slots=True)
class Call:
    """One request that the engine has taken. `id` is its answer's."""

    id: str
    choices: Choices
    answer: Answer
    timer: RequestTimer
    include_usage: bool
    keep_alive_seconds: float
    write_seconds: float

    def finished(self) -> None:
        """To be called when every choice has ended well."""
        self.timer.finished()
        if not _log.isEnabledFor(logging.DEBUG):
            return
        for choice in self.choices.all:
            told = choice.transcript
            why = f"; {told.cache_miss}" if told.cache_miss else ""
            _log.debug(
                "%s: choice %d: %d of %d prompt tokens cached%s",
                self.id, choice.index, told.cached_tokens, told.prompt_tokens, why,
            )  # fmt: skip


class GenerationRoute(Generic[T]):
    """An ASGI application that answers one generation API."""

    def __init__(self, service: Service, api: Api[T]) -> None:
        self._service = service
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        settings = self._service.settings
        length = body_length(scope["headers"], settings.max_body_bytes)
        with self._service.admitted():
            body = await read_body(receive, length, settings.body_timeout_seconds)
            lowered = await self._service.lower(length, lambda: self._lowered(body))
            call = await self._submitted(lowered, began)
            if lowered.stream:
                await _stream(call, receive, send)
            else:
                await _buffer(call, scope, receive, send)

    def _lowered(self, body: bytes) -> Lowered:
        wire = decode_body(body, self._api.kind, self._api.unbuilt)
        self._service.check_model(wire.model)
        return self._api.lower(wire, self._service)

    async def _submitted(self, lowered: Lowered, began: float) -> Call:
        service, api = self._service, self._api
        tokenizer, n = service.text.tokenizer, lowered.n
        echoes = tuple(
            Echo(lowered.echoes[index // n], request.prompt)
            for index, request in enumerate(lowered.requests if lowered.echoes else ())
        )
        heading = service.heading(api.id_prefix)
        asked = Asked(lowered.logprobs, lowered.include_usage, echoes)
        timer = RequestTimer(service.metrics, began, streamed=lowered.stream)
        choices = await open_choices(service.engine, tokenizer, lowered, echoes)
        waits = service.settings.keep_alive_seconds, service.settings.write_timeout_seconds
        answer = api.answer(heading, tokenizer, asked)
        return Call(heading.id, choices, answer, timer, lowered.include_usage, *waits)


async def _buffer(call: Call, scope: Scope, receive: Receive, send: Send) -> None:
    pieces: list[list[Piece]] = [[] for _ in call.choices.all]

    async def keep(index: int, piece: Piece, count: int) -> None:
        pieces[index].append(piece)
        call.timer.tokens(count, index)

    async with present(receive, call.choices.streams) as client:
        await call.choices.read(client, keep)
    call.finished()
    await json_response(call.answer.whole(pieces, call.choices.usage))(scope, receive, send)


async def _stream(call: Call, receive: Receive, send: Send) -> None:
    """Nothing is sent before the first output (or keep-alive), so that a request that fails at once gets its status."""
    out = EventStream(send, call.keep_alive_seconds, call.write_seconds)
    running = len(call.choices.all)

    async def write(index: int, piece: Piece, count: int) -> None:
        nonlocal running
        call.timer.tokens(count, index)
        data = events(call.answer.chunks(index, piece))
        if piece.finish is not None:
            running -= 1
            if running == 0:
                data += event(call.answer.usage_chunk(call.choices.usage)) if call.include_usage else b""
                data += DONE
                call.finished()
        if data:
            await out.write(data)

    async with present(receive, call.choices.streams, every=call.keep_alive_seconds, tick=out.keep_alive) as client:
        try:
            await call.choices.read(client, write)
        except ClientGoneError:
            raise
        except Exception as error:
            if not out.started:
                raise
            status, wire = wire_error(error)
            if status == FALLBACK.status:
                _log.exception("a stream failed after it began")
            await out.write(event(ErrorBody(wire)))
        await out.close()
