"""POST /tokenize and /detokenize."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from poot_serve.limits.body import read_body
from poot_serve.limits.head import body_length
from poot_serve.lower.decode import decode_body
from poot_serve.lower.tokens import detokenized, tokenized
from poot_serve.lower.unbuilt import NONE, TOKENIZE
from poot_serve.protocol.tokens import DetokenizedPrompt, DetokenizeRequest, TokenizeRequest, Tokens
from poot_serve.routes.answers import json_response
from poot_serve.service import Service


class TokenRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def tokenize(self, request: Request) -> Response:
        return await self._answer(request, self._tokenized)

    async def detokenize(self, request: Request) -> Response:
        return await self._answer(request, self._detokenized)

    async def _answer(self, request: Request, work: Callable[[bytes], msgspec.Struct]) -> Response:
        service, settings = self._service, self._service.settings
        length = body_length(request.scope["headers"], settings.max_body_bytes)
        with service.admitted():
            body = await read_body(request.receive, length, settings.body_timeout_seconds)
            return json_response(await service.lower(length, lambda: work(body)))

    def _tokenized(self, body: bytes) -> Tokens:
        service = self._service
        wire = decode_body(body, TokenizeRequest, TOKENIZE)
        service.check_model(wire.model)
        return tokenized(wire, service.text, service.engine.info)

    def _detokenized(self, body: bytes) -> DetokenizedPrompt:
        service = self._service
        wire = decode_body(body, DetokenizeRequest, NONE)
        service.check_model(wire.model)
        return detokenized(wire, service.text, service.engine.info)
