"""POST /tokenize and /detokenize."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from poot_serve.lower.decode import decode_body
from poot_serve.lower.tokens import detokenized, tokenized
from poot_serve.lower.unbuilt import NONE, TOKENIZE
from poot_serve.lower.unknown import Shape, refuse_unknown, shape_of, unknown_fields
from poot_serve.protocol.tokens import DetokenizedPrompt, DetokenizeRequest, TokenizeRequest, Tokens
from poot_serve.routes.answers import json_response
from poot_serve.service import Service


class TokenRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._tokenize_shape = shape_of(TokenizeRequest, tuple(TOKENIZE))
        self._detokenize_shape = shape_of(DetokenizeRequest)

    async def tokenize(self, request: Request) -> Response:
        return await self._answer(request, self._tokenized, renders=True)  # it may have messages

    async def detokenize(self, request: Request) -> Response:
        return await self._answer(request, self._detokenized)

    async def _answer(
        self, request: Request, work: Callable[[bytes], msgspec.Struct], *, renders: bool = False
    ) -> Response:
        service = self._service
        length = service.admit(request.scope)
        with service.counted():
            body = await service.bodies.read(request.receive, length)
            return json_response(await service.lower(len(body), lambda: work(body), renders=renders))

    def _check_fields(self, body: bytes, shape: Shape) -> None:
        if self._service.settings.strict_fields:
            refuse_unknown(unknown_fields(body, shape))

    def _tokenized(self, body: bytes) -> Tokens:
        service = self._service
        wire = decode_body(body, TokenizeRequest, TOKENIZE)
        self._check_fields(body, self._tokenize_shape)
        service.check_model(wire.model)
        return tokenized(wire, service.text, service.engine.info)

    def _detokenized(self, body: bytes) -> DetokenizedPrompt:
        service = self._service
        wire = decode_body(body, DetokenizeRequest, NONE)
        self._check_fields(body, self._detokenize_shape)
        service.check_model(wire.model)
        return detokenized(wire, service.text, service.engine.info)
