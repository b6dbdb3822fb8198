"""Writes of one stream: in turn whoever writes, cut by one clock, and their bytes those of the whole chunks."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poot_batch.request import TokenLogprob
from poot_serve.emit.answer import Asked, Heading
from poot_serve.emit.chat import ChatAnswer
from poot_serve.emit.completions import CompletionAnswer
from poot_serve.emit.sse import events
from poot_serve.emit.transcript import Piece
from poot_serve.errors import ClientGoneError
from poot_serve.routes import event_stream
from poot_serve.routes.event_stream import EventStream

HEADING = Heading("id-1", 1, 'a "model" ab', "fp_1")


class Client:
    """Takes one message each time it is told to."""

    def __init__(self):
        self.taken, self.turns = [], asyncio.Semaphore(0)

    async def send(self, message):
        await self.turns.acquire()
        self.taken.append(message.get("body", b"head"))


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


def test_writers_take_turns_in_the_order_they_came():
    async def main():
        client = Client()
        with EventStream(client.send, client.send, 10.0, 10.0) as out:
            writes = [asyncio.create_task(out.write(b"%d" % number)) for number in range(4)]
            await settle()
            writes[1].cancel()
            for _ in range(4):
                client.turns.release()
                await settle()
        assert client.taken == [b"head", b"0", b"2", b"3"]
        assert [write.cancelled() for write in writes] == [False, True, False, False]

    asyncio.run(main())


def test_a_writer_that_is_cancelled_as_its_turn_comes_passes_it_on():
    async def main():
        client = Client()
        with EventStream(client.send, client.send, 10.0, 10.0) as out:
            writes = [asyncio.create_task(out.write(b"%d" % number)) for number in range(3)]
            await settle()
            client.turns.release()
            client.turns.release()
            while not writes[0].done():
                await asyncio.sleep(0)
            writes[1].cancel()
            client.turns.release()
            await settle()
        assert client.taken == [b"head", b"0", b"2"]

    asyncio.run(main())


def test_the_clock_runs_anew_with_each_write(monkeypatch):
    now = 0.0
    monkeypatch.setattr(event_stream, "time", SimpleNamespace(monotonic=lambda: now))

    async def main():
        nonlocal now
        client = Client()
        gone = pytest.raises(ClientGoneError, match="10 seconds")
        with gone, EventStream(client.send, client.send, 60.0, 10.0) as out:
            first = asyncio.create_task(out.write(b"0"))
            await settle()
            now = 9.0
            out._look()
            client.turns.release()
            client.turns.release()
            await first
            now = 11.0
            out._look()  # nothing is being written
            second = asyncio.create_task(out.write(b"1"))
            await settle()
            now = 20.0
            out._look()
            await settle()
            assert not second.done()
            now = 21.0
            out._look()
            await second
        assert client.taken == [b"head", b"0"]

    asyncio.run(main())


@pytest.mark.parametrize("answer", [ChatAnswer, CompletionAnswer])
@pytest.mark.parametrize("asked", [Asked(), Asked(include_usage=True), Asked(logprobs=True)])
@given(texts=st.lists(st.tuples(st.integers(0, 2), st.text(max_size=8)), max_size=12))
def test_events_are_the_chunks_as_events(text, answer, asked, texts):
    pieces = [(index, Piece(said, (), None)) for index, said in texts]
    if asked.logprobs:
        pieces = [(index, Piece(one.text, (TokenLogprob(5, -1.0),), None)) for index, one in pieces]
    pieces += [(index, Piece("", (), "stop")) for index in range(3)]
    made, whole = (answer(HEADING, text.tokenizer, asked) for _ in range(2))
    for index, piece in pieces:
        assert made.events(index, piece) == events(whole.chunks(index, piece))
