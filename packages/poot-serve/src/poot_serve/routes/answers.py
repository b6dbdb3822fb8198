"""Complete (not streamed) JSON answers."""

from __future__ import annotations

import msgspec
from starlette.responses import Response
from starlette.types import Send

from poot_serve.errors import RETRY_SECONDS, AuthenticationError, MethodError
from poot_serve.protocol.errors import ErrorBody, wire_error


def json_response(value: object, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, "application/json")


async def send_json(send: Send, value: object) -> None:
    """The same with status 200, without an object between: most answers are sent so."""
    body = msgspec.json.encode(value)
    head = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": body})


def error_response(error: Exception, retry_seconds: int = RETRY_SECONDS) -> Response:
    """The answer to a request that ended with `error` before anything was sent; `retry_seconds` is for a 503 whose
    error does not say when to try again."""
    status, wire = wire_error(error)
    return json_response(ErrorBody(wire), status=status, headers=_headers(error, status, retry_seconds))


def _headers(error: Exception, status: int, retry_seconds: int) -> dict[str, str]:
    headers: dict[str, str] = {}
    if isinstance(error, MethodError) and error.allow:
        headers["allow"] = error.allow
    if isinstance(error, AuthenticationError):
        headers["www-authenticate"] = 'Bearer realm="poot"'
    if status in (429, 503):
        headers["retry-after"] = str(getattr(error, "retry_after", retry_seconds))
    return headers
