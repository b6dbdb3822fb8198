"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from poot_serve.protocol.models import ModelCard, ModelList
from poot_serve.routes.answers import json_response
from poot_serve.service import Service


class ModelRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def list(self, request: Request) -> Response:
        return json_response(ModelList(data=[self._card()]))

    async def describe(self, request: Request) -> Response:
        """Raises ModelNotFoundError. The id may hold slashes: the path that the server was started with is one."""
        self._service.check_model(request.path_params["id"])
        return json_response(self._card())

    def _card(self) -> ModelCard:
        service = self._service
        return ModelCard(
            id=service.settings.model_name, created=service.created, max_model_len=service.engine.info.max_seq
        )
