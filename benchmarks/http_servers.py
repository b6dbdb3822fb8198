"""The two servers that serve_http.py compares: `poot` and `bare`. They end with their standard input."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from live_server import demonstration_model

WORD = " river"
MANY = 4096
OPENED = "open"


def serve_poot(port: int, profile: str | None) -> None:
    """poot-serve as its console script runs it, over NullEngine."""
    import uvloop
    from null_engine import NullEngine

    from poot_models.text import open_text
    from poot_serve.limits.host import Listener
    from poot_serve.listen import make_server
    from poot_serve.service import Service
    from poot_serve.settings import Settings

    model = demonstration_model()
    text = open_text(model)
    (word,) = text.tokenizer.encode(WORD, add_special=False)
    settings = Settings(
        model=model,
        model_name=model.stem,
        listener=Listener("127.0.0.1", port),
        max_pending_requests=MANY,
        max_receiving_requests=MANY,
    )

    async def serve() -> None:
        service = Service(NullEngine(word), text, settings)
        gc.freeze()  # as launch does
        await _serve(make_server(service), port)

    if profile is None:
        uvloop.run(serve())
        return
    import cProfile

    with cProfile.Profile() as seen:
        uvloop.run(serve())
    seen.dump_stats(profile)


def serve_bare(port: int) -> None:
    """A bare application in the same Granian: path -> the head's fields and the writes of its answer, from stdin."""
    import uvloop
    from granian.constants import HTTPModes, Interfaces
    from granian.server.embed import Server

    told = {
        path: ([(name.encode(), value.encode()) for name, value in head], [part.encode() for part in parts])
        for path, (head, parts) in json.loads(sys.stdin.readline()).items()
    }

    async def application(
        scope: dict[str, Any],
        receive: Callable[[], Awaitable[dict[str, Any]]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        head, parts = told["stream" if b'"stream":true' in body else scope["path"]]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        for part in parts[:-1]:
            await send({"type": "http.response.body", "body": part, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": parts[-1], "more_body": False})

    server = Server(
        application,
        address="127.0.0.1",
        port=port,
        interface=Interfaces.ASGINL,
        http=HTTPModes.http1,
        websockets=False,
        backlog=1024,
        backpressure=4096,
        log_enabled=False,
    )
    uvloop.run(_serve(server, port))


async def _serve(server: Any, port: int) -> None:
    """Says when it listens, and ends with its parent's side of stdin."""
    serving = asyncio.create_task(server.serve())
    async for _ in _until_open(port):
        await asyncio.sleep(0.02)
    print(OPENED, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.stop()
    await asyncio.wait({serving}, timeout=2)


async def _until_open(port: int) -> AsyncIterator[None]:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            yield
        else:
            writer.close()
            return


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server", choices=("poot", "bare"))
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--profile", metavar="FILE", default=None)
    arguments = parser.parse_args()
    if arguments.server == "poot":
        serve_poot(arguments.port, arguments.profile)
    else:
        serve_bare(arguments.port)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
