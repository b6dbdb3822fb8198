"""Complete (not streamed) JSON answers."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from poot_serve.errors import MethodError
from poot_serve.protocol.errors import ErrorBody, wire_error


def json_response(value: object, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def error_response(error: Exception) -> Response:
    """The answer to a request that ended with `error` before anything was sent."""
    status, wire = wire_error(error)
    headers = {"allow": error.allow} if isinstance(error, MethodError) and error.allow else None
    return json_response(ErrorBody(wire), status=status, headers=headers)
