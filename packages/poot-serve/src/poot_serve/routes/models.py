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
        return json_response(ModelList(data=[self._card(name) for name in self._service.names]))

    async def describe(self, request: Request) -> Response:
        """Raises ModelNotFoundError. The id may hold slashes: the path that the server was started with is one."""
        service, name = self._service, request.path_params["id"]
        service.check_model(name)
        return json_response(self._card(name if name in service.names else service.settings.model_name))

    def _card(self, name: str) -> ModelCard:
        service = self._service
        return ModelCard(id=name, created=service.created, max_model_len=service.engine.info.max_seq)
