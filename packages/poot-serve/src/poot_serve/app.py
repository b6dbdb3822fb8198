"""The ASGI application: routes behind an edge that checks heads, names requests and answers every error in JSON."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Awaitable, Callable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from poot_serve.errors import BodyIncompleteError, ClientGoneError, GenerationError, MethodError, RouteNotFoundError
from poot_serve.limits.head import check_head
from poot_serve.protocol.errors import wire_error
from poot_serve.routes.answers import error_response
from poot_serve.routes.chat import CHAT_API
from poot_serve.routes.completions import COMPLETION_API
from poot_serve.routes.generation import GenerationRoute
from poot_serve.routes.models import ModelRoutes
from poot_serve.routes.operations import OperationRoutes
from poot_serve.routes.tokens import TokenRoutes
from poot_serve.service import Service

_log = logging.getLogger(__name__)
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/=+@-]{1,128}")


def make_app(service: Service) -> ASGIApp:
    """The server's application over `service`."""
    models, operations, tokens = ModelRoutes(service), OperationRoutes(service), TokenRoutes(service)
    routes = [
        Route("/v1/chat/completions", GenerationRoute(service, CHAT_API), methods=["POST"], name="chat"),
        Route("/v1/completions", GenerationRoute(service, COMPLETION_API), methods=["POST"], name="completions"),
        Route("/tokenize", tokens.tokenize, methods=["POST"]),
        Route("/detokenize", tokens.detokenize, methods=["POST"]),
        _get("/v1/models", models.list),
        _get("/v1/models/{id:path}", models.describe),
        _get("/health", operations.health),
        _get("/metrics", operations.metrics),
        _get("/metrics/prometheus", operations.prometheus),
    ]
    return Edge(Router(routes, redirect_slashes=False), service)


def _get(path: str, endpoint: Callable[[Request], Awaitable[Response]]) -> Route:
    route = Route(path, endpoint, methods=["GET"])
    route.methods = {"GET"}  # Route adds HEAD, which this API does not have
    return route


class Edge:
    """Checks every request's head, echoes or makes its x-request-id, and turns exceptions into wire errors."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._settings = service.settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scope["app"] = self  # tells the router to raise for an unknown route or method instead of answering in text
        request_id = _request_id(scope)
        started = False

        async def tagged(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            await send(message)

        try:
            check_head(scope["headers"], self._settings.listener, self._settings.max_head_bytes)
            await self._app(scope, receive, tagged)
        except asyncio.CancelledError:
            # The listener is closing and this answer's client does not read: there is nobody to tell.
            _log.debug("%s: ended with the listener", request_id.decode())
        except ClientGoneError as gone:
            _log.debug("%s: %s", request_id.decode(), gone)
            if not started:
                # It may have closed its sending side alone.
                await error_response(BodyIncompleteError(str(gone)))(scope, receive, tagged)
        except Exception as raised:
            error = _own(raised, scope)
            status, wire = wire_error(error)
            if wire.code == "draining":
                # Whoever stops a server knows that it refuses what comes then.
                _log.debug("%s: %s", request_id.decode(), error)
            elif status >= 500:
                _log.error("%s: %s", request_id.decode(), error, exc_info=_unexpected(error))
            if not started:
                await error_response(error)(scope, receive, tagged)


def _unexpected(error: Exception) -> bool:
    """Whether an error deserves a traceback: one that the engine reported has none of its own here."""
    return wire_error(error)[0] == 500 and not isinstance(error, GenerationError)


def _own(error: Exception, scope: Scope) -> Exception:
    if not isinstance(error, HTTPException):
        return error
    if error.status_code == 405:
        allow = (error.headers or {}).get("Allow", "")
        return MethodError(f"this route takes {allow} alone", allow=allow)
    return RouteNotFoundError(f"there is no route {scope['path'][:256]!r}")


def _request_id(scope: Scope) -> bytes:
    given = [value for name, value in scope["headers"] if name == b"x-request-id"]
    if len(given) == 1 and _REQUEST_ID.fullmatch(given[0]) is not None:
        return bytes(given[0])
    return b"req_" + secrets.token_hex(12).encode()
