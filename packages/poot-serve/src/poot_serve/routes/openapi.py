"""GET /openapi.json."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from poot_serve import __version__
from poot_serve.openapi.document import openapi_document
from poot_serve.service import Service


class OpenApiRoute:
    """The document, made once."""

    def __init__(self, service: Service) -> None:
        self._document = openapi_document(__version__, keyed=service.settings.api_keys is not None)

    async def document(self, request: Request) -> Response:
        return Response(self._document, media_type="application/json")
