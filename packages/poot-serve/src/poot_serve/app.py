"""The ASGI application: routes behind an edge that checks heads, names requests and answers every error in JSON."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from poot_serve import logs
from poot_serve.errors import (
    BodyIncompleteError,
    ClientGoneError,
    GenerationError,
    MethodError,
    RouteNotFoundError,
)
from poot_serve.limits.head import Head, check_head, check_size
from poot_serve.limits.origins import Origins
from poot_serve.limits.whole import PIECE_BYTES, send_whole
from poot_serve.protocol.errors import wire_error
from poot_serve.routes.answers import error_response
from poot_serve.routes.chat import CHAT_API
from poot_serve.routes.completions import COMPLETION_API
from poot_serve.routes.generation import GenerationRoute
from poot_serve.routes.models import ModelRoutes
from poot_serve.routes.openapi import OpenApiRoute
from poot_serve.routes.operations import OperationRoutes
from poot_serve.routes.tokens import TokenRoutes
from poot_serve.service import Service

_log = logging.getLogger(__name__)
# Routes that need no API key.
PUBLIC = ("/health",)
# Errors for a reason that the log has told already: that the server drains, or what became of the engine.
TOLD = ("draining", "engine_restarting", "engine_dead", "queue_timeout")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/=+@-]{1,128}")


def make_app(service: Service) -> ASGIApp:
    """The server's application over `service`."""
    return Edge(Routes(make_routes(service)), service)


def make_routes(service: Service) -> list[Route]:
    """Every route, behind its guard."""
    models, operations, tokens = ModelRoutes(service), OperationRoutes(service), TokenRoutes(service)
    routes = [
        _post("/v1/chat/completions", GenerationRoute(service, CHAT_API)),
        _post("/v1/completions", GenerationRoute(service, COMPLETION_API)),
        _post("/tokenize", tokens.tokenize),
        _post("/detokenize", tokens.detokenize),
        _get("/v1/models", models.list),
        _get("/v1/models/{id:path}", models.describe),
        _get("/health", operations.health),
        _get("/metrics", operations.metrics),
        _get("/metrics/prometheus", operations.prometheus),
        _get("/openapi.json", OpenApiRoute(service).document),
    ]
    for route in routes:
        route.app = Guard(route.app, service, frozenset(route.methods or ()), public=route.path in PUBLIC)
        if service.settings.cors_origins:
            route.methods = {*(route.methods or ()), "OPTIONS"}
    return routes


def _post(path: str, endpoint: Callable[..., object]) -> Route:
    return Route(path, endpoint, methods=["POST"])


def _get(path: str, endpoint: Callable[[Request], Awaitable[Response]]) -> Route:
    route = Route(path, endpoint, methods=["GET"])
    route.methods = {"GET"}  # Route adds HEAD, which this API does not have
    return route


class Routes:
    """The router, and before it a look whether a POST's path is a route's as it stands: the search of the router costs
    as much as some answers."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._router = Router(routes, redirect_slashes=False)
        self._posts = {route.path: route.app for route in routes if "POST" in (route.methods or ())}

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        found = self._posts.get(scope["path"]) if scope["method"] == "POST" else None
        return (self._router if found is None else found)(scope, receive, send)


class Guard:
    """What every route checks of a request that it has the path and method for: its head, and its key.

    A POST's key is checked by `Service.admitted`, after the limits that come before it. Preflights of web pages are
    answered here, and need no key.
    """

    def __init__(self, app: ASGIApp, service: Service, methods: frozenset[str], *, public: bool) -> None:
        self._app, self._service, self._methods, self._public = app, service, methods, public
        self._origins = Origins(service.settings.cors_origins)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        settings, method = self._service.settings, scope["method"]
        check_head(scope["head"], settings.listener, settings.allowed_hosts)
        if method == "OPTIONS":
            return self._preflight(scope, send)
        if method != "POST" and not self._public:
            self._service.check_key(scope["headers"])
        return self._app(scope, receive, send)

    async def _preflight(self, scope: Scope, send: Send) -> None:
        answer = self._origins.preflight(scope["headers"], self._methods)
        if answer is None:
            allow = ", ".join(sorted(self._methods))
            raise MethodError(f"this route takes {allow} alone", allow=allow)
        await send({"type": "http.response.start", "status": 204, "headers": answer})
        await send({"type": "http.response.body", "body": b""})


class Edge:
    """Checks the size of every request's head, echoes or makes its x-request-id, tells web pages whether they may read
    the answer, and turns exceptions into wire errors."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service
        self._errors = service.metrics.errors
        self._new_id = service.new_id
        self._max_head_bytes = service.settings.max_head_bytes
        self._write_seconds = service.settings.write_timeout_seconds
        self._origins = Origins(service.settings.cors_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scope["app"] = self  # tells the router to raise for an unknown route or method instead of answering in text
        head = scope["head"] = Head(scope["headers"])
        scope["send"] = send  # for the events of a stream, of which only the first needs what is done here
        scope["id"] = made = self._new_id()
        request_id = _given_id(head) or b"req_" + made.encode()
        logs.request_id.set(request_id.decode())
        added = [(b"x-request-id", request_id), *self._origins.headers(scope["headers"])]
        started = False

        def tagged(message: Message) -> Awaitable[None]:
            nonlocal started
            if not started and message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message["headers"], *added]
            elif len(message.get("body", b"")) > PIECE_BYTES and not message.get("more_body", False):
                return send_whole(send, message["body"], self._write_seconds)
            return send(message)

        try:
            check_size(head, self._max_head_bytes)
            await self._app(scope, receive, tagged)
        except asyncio.CancelledError:
            # The listener is closing and this answer's client does not read: there is nobody to tell.
            _log.debug("ended with the listener")
        except Exception as raised:
            # In a function of its own: an exception that a frame on its own traceback names keeps the request, and
            # with it a client's connection, until the garbage collector comes by.
            answer = self._refusal(raised, scope)
            if not started:
                await answer(scope, receive, tagged)

    def _refusal(self, raised: Exception, scope: Scope) -> Response:
        """Tells the log and the counters of an error; the answer to its request, if that has none yet."""
        error = _own(raised, scope)
        if isinstance(error, ClientGoneError):
            _log.debug("%s", error)
            self._errors.add(error.code)
            # It may have closed its sending side alone.
            return error_response(BodyIncompleteError(str(error)))
        status, wire = wire_error(error)
        self._errors.add(wire.code)
        if wire.code in TOLD:
            _log.debug("%s", error)
        elif status >= 500:
            _log.error("%s", error, exc_info=error if _unexpected(error) else None)
        return error_response(error, self._service.retry_seconds)


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


def _given_id(head: Head) -> bytes | None:
    given = head.get(b"x-request-id", ())
    if len(given) == 1 and _REQUEST_ID.fullmatch(given[0]) is not None:
        return given[0]
    return None
