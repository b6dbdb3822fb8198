"""What both generation routes do: read, lower, submit, and answer streamed or buffered."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from starlette.types import Receive, Scope, Send

from poot_batch.process.interface import RequestStream
from poot_serve.emit.answer import Answer
from poot_serve.emit.chat import ChatAnswer
from poot_serve.emit.completions import CompletionAnswer
from poot_serve.emit.sse import DONE, event, events
from poot_serve.emit.transcript import Piece, Transcript
from poot_serve.errors import ClientGoneError, GenerationError
from poot_serve.limits.body import read_body
from poot_serve.limits.head import body_length
from poot_serve.lower.decode import decode_body
from poot_serve.lower.sampling import Lowered
from poot_serve.lower.unbuilt import Unbuilt
from poot_serve.metrics import RequestTimer
from poot_serve.protocol.errors import FALLBACK, ErrorBody, wire_error
from poot_serve.protocol.request import GenerationFields
from poot_serve.routes.answers import json_response
from poot_serve.routes.client import present
from poot_serve.routes.event_stream import EventStream
from poot_serve.service import Service

T = TypeVar("T", bound=GenerationFields)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Api(Generic[T]):
    """What tells one generation API from another. `continues`: the answer's text goes on from the prompt's."""

    kind: type[T]
    unbuilt: Unbuilt
    id_prefix: str
    lower: Callable[[T, Service, int], Lowered]
    answer: type[ChatAnswer] | type[CompletionAnswer]
    continues: bool


@dataclass(frozen=True, slots=True)
class Call:
    """One request that the engine has taken."""

    stream: RequestStream
    transcript: Transcript
    answer: Answer
    timer: RequestTimer
    include_usage: bool
    keep_alive_seconds: float
    write_seconds: float


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
            request_id = self._service.engine.next_request_id()
            lowered = await self._service.lower(length, lambda: self._lowered(body, request_id))
            call = self._submitted(lowered, began)
            if lowered.stream:
                await _stream(call, receive, send)
            else:
                await _buffer(call, scope, receive, send)

    def _lowered(self, body: bytes, request_id: int) -> Lowered:
        wire = decode_body(body, self._api.kind, self._api.unbuilt)
        self._service.check_model(wire.model)
        return self._api.lower(wire, self._service, request_id)

    def _submitted(self, lowered: Lowered, began: float) -> Call:
        service, api = self._service, self._api
        tokenizer = service.text.tokenizer
        answer = api.answer(
            service.heading(api.id_prefix),
            tokenizer,
            logprobs=lowered.logprobs is not None,
            include_usage=lowered.include_usage,
        )
        transcript = Transcript(tokenizer, engine_text=bool(lowered.request.stop), continues=api.continues)
        timer = RequestTimer(service.metrics, began, streamed=lowered.stream)
        stream = service.engine.submit(lowered.request)
        waits = service.settings.keep_alive_seconds, service.settings.write_timeout_seconds
        return Call(stream, transcript, answer, timer, lowered.include_usage, *waits)


async def _buffer(call: Call, scope: Scope, receive: Receive, send: Send) -> None:
    pieces: list[Piece] = []
    async with present(receive, call.stream) as client:
        async for output in call.stream:
            if client.gone:
                raise ClientGoneError("the client left before its answer")
            pieces.append(call.transcript.push(output))
            call.timer.tokens(len(output.tokens))
    if not pieces or pieces[-1].finish is None:
        raise GenerationError("the engine ended the request without a reason", engine_code="engine_fault")
    call.timer.finished()
    await json_response(call.answer.whole(pieces, call.transcript.usage))(scope, receive, send)


async def _stream(call: Call, receive: Receive, send: Send) -> None:
    """Nothing is sent before the first output (or keep-alive), so that a request that fails at once gets its status."""
    out = EventStream(send, call.keep_alive_seconds, call.write_seconds)
    async with present(receive, call.stream, every=call.keep_alive_seconds, tick=out.keep_alive) as client:
        try:
            async for output in call.stream:
                if client.gone:
                    return
                piece = call.transcript.push(output)
                call.timer.tokens(len(output.tokens))
                data = events(call.answer.chunks(piece))
                if piece.finish is not None:
                    data += event(call.answer.usage_chunk(call.transcript.usage)) if call.include_usage else b""
                    data += DONE
                    call.timer.finished()
                if data:
                    await out.write(data)
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
