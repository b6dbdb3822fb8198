"""How an answer ended is counted once, whenever its client stops reading."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from poot_batch.request import EngineStats
from poot_serve.app import make_app
from poot_serve.limits.host import Listener
from poot_serve.limits.whole import PIECE_BYTES
from poot_serve.metrics import to_json
from poot_serve.service import Service
from poot_serve.settings import Settings

PATH = "/v1/completions"
WRITE_SECONDS = 0.02


@pytest.fixture
def service(text, engine):
    made = Service(
        engine,
        text,
        Settings(
            model=Path("/models/tiny.gguf"),
            model_name="tiny",
            listener=Listener("127.0.0.1", 8080),
            write_timeout_seconds=WRITE_SECONDS,
        ),
    )
    yield made
    made.close()


class Client:
    """Sends one request, takes so many messages of its answer (None: all), and then waits without reading."""

    def __init__(self, messages, **fields):
        self._left, self.taken = messages, []
        self._body = json.dumps({"prompt": "a", "max_tokens": None, **fields}).encode()

    @property
    def scope(self):
        head = {"host": "127.0.0.1:8080", "content-type": "application/json", "content-length": str(len(self._body))}
        return {
            "type": "http", "method": "POST", "path": PATH, "client": ("127.0.0.1", 5000),
            "headers": [(name.encode(), value.encode()) for name, value in head.items()],
        }  # fmt: skip

    async def receive(self):
        if self._body:
            body, self._body = self._body, b""
            return {"type": "http.request", "body": body, "more_body": False}
        await asyncio.Event().wait()

    async def send(self, message):
        if self._left is not None and len(self.taken) >= self._left:
            await asyncio.Event().wait()
        self.taken.append(message)


def served(service, client):
    """Lets the client have its answer. What is counted of it: the errors, and the answers that ended well."""

    async def main():
        async with asyncio.timeout(5):
            await make_app(service)(client.scope, client.receive, client.send)

    asyncio.run(main())
    figures = to_json(service.metrics.families(service.engine.info, EngineStats()))
    return figures["poot_errors_total"], figures["poot_request_e2e_ms"]["count"]


def fill(engine, *, finish, size=1):
    """Each choice gets two steps of so many tokens, and then ends."""
    engine.script.steps, engine.script.finish = [[40] * size, [41] * size], finish
    engine.script.error_code = "engine_dead" if finish == "error" else None


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(("finish", "counted"), [("stop", ({}, 1)), ("error", ({"engine_dead": 1}, 0))])
def test_a_stream_that_is_read_to_its_end_is_counted_by_how_it_ended(service, engine, n, finish, counted):
    fill(engine, finish=finish)
    client = Client(None, stream=True, n=n)
    assert served(service, client) == counted
    assert client.taken[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("finish", ["stop", "error"])
@pytest.mark.parametrize("left", [1, 2, 3, 4])
def test_a_stream_of_which_messages_are_left_is_counted_as_a_client_that_left(service, engine, n, finish, left):
    """The last one is the end of the body; before it come the [DONE] or the error, and the events of the tokens."""
    fill(engine, finish=finish)
    whole = Client(None, stream=True, n=n)
    errors, ended = served(service, whole)
    short = Client(len(whole.taken) - left, stream=True, n=n)
    after, also_ended = served(service, short)
    assert len(short.taken) == len(whole.taken) - left
    assert after == {**errors, "client_closed_request": 1} and also_ended == ended


def test_a_long_answer_that_is_not_taken_is_counted_as_a_client_that_left(service, engine):
    """Granian takes a short one whole, so that nobody learns what became of it."""
    fill(engine, finish="stop", size=8)
    long = {"n": 32, "logprobs": 20}
    whole = Client(None, **long)
    assert served(service, whole) == ({}, 1)
    pieces = [len(message["body"]) for message in whole.taken[1:]]
    assert sum(pieces) > max(pieces) == PIECE_BYTES
    for taken in range(1, len(whole.taken)):
        assert served(service, Client(taken, **long)) == ({"client_closed_request": taken}, 1)


def test_a_buffered_answer_that_fails_is_counted_by_its_error(service, engine):
    fill(engine, finish="error")
    client = Client(None)
    assert served(service, client) == ({"engine_dead": 1}, 0)
    assert client.taken[0]["status"] >= 500
