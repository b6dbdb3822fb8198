"""What both generation routes do: read, lower, submit, and answer streamed or buffered."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import msgspec
from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from poot_batch.errors import EngineDeadError, EngineDrainingError
from poot_serve.emit.answer import Answer, Asked
from poot_serve.emit.chat import ChatAnswer
from poot_serve.emit.completions import CompletionAnswer
from poot_serve.emit.echo import Echo
from poot_serve.emit.report import report_of
from poot_serve.emit.sse import DONE, event
from poot_serve.emit.transcript import Piece
from poot_serve.errors import ClientGoneError
from poot_serve.limits.deadlines import Deadlines
from poot_serve.lower.decode import decode_body
from poot_serve.lower.generation import Lowered
from poot_serve.lower.sampling import wants_report
from poot_serve.lower.unbuilt import Unbuilt
from poot_serve.lower.unknown import refuse_unknown, shape_of, unknown_fields
from poot_serve.metrics import RequestTimer
from poot_serve.protocol.errors import FALLBACK, ErrorBody, wire_error
from poot_serve.protocol.report import Report
from poot_serve.protocol.request import GenerationFields
from poot_serve.routes.answers import send_json
from poot_serve.routes.choices import Choices, open_choices
from poot_serve.routes.client import Presence
from poot_serve.routes.event_stream import EventStream
from poot_serve.service import Service
from poot_serve.settings import Settings

T = TypeVar("T", bound=GenerationFields)
_log = logging.getLogger(__name__)
# After so long a request's client is watched. Most short answers have ended by then.
WATCH_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Api(Generic[T]):
    """What tells one generation API from another. `renders`: its prompts come from the chat template."""

    kind: type[T]
    unbuilt: Unbuilt
    id_prefix: str
    lower: Callable[[T, Service], Lowered]
    answer: type[ChatAnswer] | type[CompletionAnswer]
    renders: bool = False


class Call(msgspec.Struct, frozen=True):
    """One request that the engine has taken. `id` is its answer's; `report` makes its report, if it asked for one."""

    id: str
    choices: Choices
    answer: Answer
    timer: RequestTimer
    report: Callable[[], Report] | None
    settings: Settings
    watches: Deadlines[Presence]

    def finished(self) -> None:
        """To be called when every choice has ended well and the client has been sent all of them."""
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
        self._shape = shape_of(api.kind, tuple(api.unbuilt))
        self._watches = Deadlines[Presence](WATCH_SECONDS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        length = self._service.admit(scope)
        with self._service.counted():
            body = await self._service.bodies.read(receive, length)
            if self._service.inline(length, renders=self._api.renders):
                lowered = self._lowered(body)
            else:
                lowered = await self._service.lower(length, lambda: self._lowered(body), renders=self._api.renders)
            call = await self._submitted(lowered, self._api.id_prefix + scope["id"], began)
            if lowered.stream:
                await _stream(call, receive, send, scope["send"])
            else:
                await _buffer(call, receive, send)

    def _lowered(self, body: bytes) -> Lowered:
        wire = decode_body(body, self._api.kind, self._api.unbuilt)
        strict = self._service.settings.strict_fields
        ignored = unknown_fields(body, self._shape) if strict or wants_report(wire) else ()
        if strict:
            refuse_unknown(ignored)
        self._service.check_model(wire.model)
        lowered = self._api.lower(wire, self._service)
        return replace(lowered, ignored=ignored) if ignored else lowered

    async def _submitted(self, lowered: Lowered, id: str, began: float) -> Call:
        service, api = self._service, self._api
        tokenizer, n = service.text.tokenizer, lowered.n
        echoes: tuple[Echo, ...] = ()
        if lowered.echoes:
            each = enumerate(lowered.requests)
            echoes = tuple(Echo(lowered.echoes[index // n], request.prompt) for index, request in each)
        heading = service.heading(id)
        asked = Asked(lowered.logprobs, lowered.include_usage, echoes)
        timer = RequestTimer(service.metrics, began, streamed=lowered.stream)
        try:
            choices = await open_choices(service.engine, tokenizer, lowered, echoes)
        except (EngineDeadError, EngineDrainingError):
            service.check_serving()  # as it would have been refused a moment later
            raise
        answer = api.answer(heading, tokenizer, asked)
        report = None
        if lowered.report:
            report = partial(
                report_of,
                lowered.requests,
                [choice.transcript for choice in choices.all],
                lowered.ignored,
                service.engine.info,
                service.settings.default_max_tokens,
            )
        return Call(id, choices, answer, timer, report, service.settings, self._watches)


async def _buffer(call: Call, receive: Receive, send: Send) -> None:
    pieces: list[list[Piece]] = [[] for _ in call.choices.all]
    streams, queue_seconds = call.choices.streams, call.settings.queue_wait_seconds

    def keep(index: int, piece: Piece, count: int) -> None:
        pieces[index].append(piece)
        call.timer.tokens(count, index)

    with Presence(call.watches, receive, streams, queue_seconds) as client:
        await call.choices.read(client, keep)
    report = call.report() if call.report is not None else None
    await send_json(send, call.answer.whole(pieces, call.choices.usage, report))
    # Not before: a client that does not take its answer is counted as one that left.
    call.finished()


async def _stream(call: Call, receive: Receive, start: Send, put: Send) -> None:
    """The status goes out with the first output or, for a request that has had a row for long, with a comment: until
    then whatever ends the request is told by a status of its own."""
    settings, streams = call.settings, call.choices.streams
    every, queue_seconds = settings.keep_alive_seconds, settings.queue_wait_seconds
    out = EventStream(start, put, every, settings.write_timeout_seconds)
    running = len(streams)

    def write(index: int, piece: Piece, count: int) -> Awaitable[None] | None:
        nonlocal running
        call.timer.tokens(count, index)
        data = call.answer.events(index, piece)
        if piece.finish is not None:
            running -= 1
            if running == 0:
                report = call.report() if call.report is not None else None
                last = call.answer.last_chunk(call.choices.usage, report)
                data += DONE if last is None else event(last) + DONE
        return out.write(data) if data else None

    async def keep_alive() -> None:
        if out.started or any(stream.opened for stream in streams):
            await out.keep_alive()

    failed: str | None = None
    with out, Presence(call.watches, receive, streams, queue_seconds, every=every, tick=keep_alive) as client:
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
            failed = wire.code
            await out.write(event(ErrorBody(wire)))
        await out.close()
    # Not before: a client that does not read to the end is counted as one that left, and as nothing else.
    if failed is None:
        call.finished()
    else:
        call.timer.failed(failed)
