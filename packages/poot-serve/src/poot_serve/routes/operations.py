"""GET /health, /metrics and /metrics/prometheus."""

from __future__ import annotations

from prometheus_client.metrics_core import Metric
from starlette.requests import Request
from starlette.responses import Response

from poot_batch.errors import EngineDeadError
from poot_serve import __version__
from poot_serve.metrics import PROMETHEUS_TYPE, Front, to_json, to_prometheus
from poot_serve.protocol.models import Health
from poot_serve.routes.answers import json_response
from poot_serve.service import Service


class OperationRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def health(self, request: Request) -> Response:
        """200 while the engine serves, else 503, with the Retry-After of a refusal; the body says which engine plan
        runs."""
        service, info = self._service, self._service.engine.info
        health = Health(
            status=service.status,
            model=service.settings.model_name,
            backend=info.backend,
            device=info.device,
            rows=info.rows,
            max_seq=info.max_seq,
            version=__version__,
        )
        if health.status == "serving":
            return json_response(health)
        return json_response(health, status=503, headers={"retry-after": str(service.retry_seconds)})

    async def metrics(self, request: Request) -> Response:
        """While the engine does not answer, or is being started again, the figures told last, with `poot_engine_up` 0;
        503 once it is gone for good."""
        return json_response(to_json(await self._families()))

    async def prometheus(self, request: Request) -> Response:
        """503 as for `metrics`, so that the scrape fails."""
        return Response(to_prometheus(await self._families()), headers={"content-type": PROMETHEUS_TYPE})

    async def _families(self) -> list[Metric]:
        service, engine = self._service, self._service.engine
        try:
            stats = await engine.stats()
        except EngineDeadError:
            service.check_serving()
            raise
        front = Front(engine.state in ("serving", "draining"), service.pending, service.receiving)
        return service.metrics.families(engine.info, stats, front)
