"""Reading a request's body: exactly as long as stated, within its deadline."""

from __future__ import annotations

from starlette.types import Receive

from poot_serve.errors import BodyIncompleteError, ClientGoneError


async def read_body(receive: Receive, length: int) -> bytes:
    """The `length` bytes of the body. Raises ClientGoneError when the client leaves, and BodyIncompleteError."""
    body = await _collect(receive, length)
    if len(body) != length:
        raise BodyIncompleteError(f"the body has {len(body)} bytes, Content-Length says {length}")
    return body


async def _collect(receive: Receive, length: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGoneError("the client left while it sent the body")
        part = message.get("body", b"")
        size += len(part)
        if size > length:
            raise BodyIncompleteError(f"the body is longer than its Content-Length of {length}")
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)
