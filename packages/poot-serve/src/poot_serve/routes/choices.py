"""The choices of one request: opened together, read together, and ended together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from poot_batch.process.interface import EngineClient, RequestStream
from poot_batch.request import Output
from poot_models.text import Tokenizer
from poot_serve.emit.echo import Echo
from poot_serve.emit.transcript import Piece, Transcript
from poot_serve.errors import ClientGoneError, GenerationError, QueueWaitError
from poot_serve.lower.generation import Lowered
from poot_serve.protocol.usage import Usage
from poot_serve.routes.client import Presence

# Called with a choice's index, a piece of it, and the number of tokens in that. What it gives is waited for.
Deliver = Callable[[int, Piece, int], Awaitable[None] | None]


class Choice(msgspec.Struct, frozen=True):
    index: int
    stream: RequestStream
    transcript: Transcript

    async def read(self, client: Presence, deliver: Deliver) -> None:
        """Hands on every piece. Raises ClientGoneError, QueueWaitError, GenerationError or UnavailableError."""
        async for output in self.stream:
            if client.gone:
                raise ClientGoneError("the client left before its answer")
            if client.expired:
                raise QueueWaitError("the engine had no room for this request in time; try again later")
            piece = self.transcript.push(output)
            delivering = deliver(self.index, piece, len(output.tokens))
            if delivering is not None:
                await delivering
            if piece.finish is not None:
                return
        raise GenerationError("the engine ended the request without a reason", engine_code="engine_fault")


class Choices(msgspec.Struct, frozen=True):
    """The choices in the order of their index, `n` for each prompt."""

    all: tuple[Choice, ...]
    n: int

    @property
    def streams(self) -> list[RequestStream]:
        return [choice.stream for choice in self.all]

    @property
    def usage(self) -> Usage:
        """Each prompt once, and the answers of all choices."""
        prompt = completion = cached = 0
        for choice in self.all:
            told = choice.transcript
            completion += told.completion_tokens
            if choice.index % self.n == 0:
                prompt += told.prompt_tokens
                cached += told.cached_tokens
        return Usage.of(prompt, completion, cached)

    def read(self, client: Presence, deliver: Deliver) -> Awaitable[None]:
        """Hands on the pieces of all choices as they come. The first that fails ends the others and is raised."""
        jobs = [choice.read(client, deliver) for choice in self.all]
        return jobs[0] if len(jobs) == 1 else _together(jobs)


async def open_choices(engine: EngineClient, tokenizer: Tokenizer, lowered: Lowered, echoes: Sequence[Echo]) -> Choices:
    """Submits the requests of all choices. Raises what `EngineClient.submit` does; then none is left open."""
    ids = [engine.next_request_id() for _ in lowered.requests]
    opened: list[Choice] = []
    try:
        for index, request in enumerate(lowered.requests):
            if index:
                # A submission copies the prompt: between those of a thousand, others are served.
                await asyncio.sleep(0)
            fork_of = None if request.fork_of is None else ids[request.fork_of]
            transcript = Transcript(
                tokenizer,
                engine_text=bool(request.stop),
                continues=request.continues,
                echo=echoes[index] if echoes else None,
            )
            if lowered.prompts_only:
                output = Output(request_id=ids[index], finish="length", prompt_tokens=len(request.prompt))
                stream: RequestStream = _Answered(output)
            else:
                stream = engine.submit(replace(request, id=ids[index], fork_of=fork_of))
            opened.append(Choice(index, stream, transcript))
    except BaseException:
        for choice in opened:
            choice.stream.cancel()
        raise
    return Choices(tuple(opened), lowered.n)


class _Answered:
    """The stream of a request that the engine has nothing to do for."""

    def __init__(self, output: Output) -> None:
        self.request_id = output.request_id
        self.opened = True
        self._output = output

    async def __aiter__(self) -> AsyncIterator[Output]:
        yield self._output

    def cancel(self) -> None:
        """There is nothing to end."""


async def _together(jobs: Sequence[Coroutine[Any, Any, None]]) -> None:
    tasks = [asyncio.create_task(job) for job in jobs]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
