"""Sending a whole answer that is large: in pieces, so that a client which does not read is noticed."""

from __future__ import annotations

import asyncio

from starlette.types import Message, Send

from poot_serve.errors import ClientGoneError

# Granian takes whatever it is given at once, and holds back only whoever gives it piece after piece.
PIECE_BYTES = 64 << 10


async def send_whole(send: Send, body: bytes, seconds: float) -> None:
    """Sends the rest of an answer, `body`. Raises ClientGoneError if the client has not taken it within `seconds`.

    What Granian and the kernel buffer counts as taken: a few MiB.
    """
    try:
        async with asyncio.timeout(seconds):
            for at in range(0, len(body), PIECE_BYTES):
                last = at + PIECE_BYTES >= len(body)
                piece: Message = {
                    "type": "http.response.body",
                    "body": body[at : at + PIECE_BYTES],
                    "more_body": not last,
                }
                await send(piece)
    except TimeoutError:
        raise ClientGoneError(f"the client did not take its answer within {seconds:g} seconds") from None
