"""docs/metrics.md and docs/grafana-dashboard.json name the metrics that there are."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from poot_batch.request import EngineStats
from poot_batch.request.info import QUEUE_BUCKETS_MS, Histogram
from poot_serve.errors import PendingLimitError
from poot_serve.metrics import LATENCY_BUCKETS_MS, Metrics

DOCS = Path(__file__).parents[2] / "docs"
ROW = re.compile(r"^\| `(poot_\w+)` \| (\w+) \| \S", re.MULTILINE)
NAME = re.compile(r"poot_\w+")
WIDTH = 24


@pytest.fixture
def families(engine):
    """Name as documented -> type."""
    waits = Histogram((0,) * (len(QUEUE_BUCKETS_MS) + 1), 0.0, 0)
    made = Metrics().families(engine.info, EngineStats(queue_wait_ms=waits))
    return {family.name + ("_total" if family.type == "counter" else ""): family.type for family in made}


@pytest.fixture
def series(families):
    """Names that a query may use."""
    parts = {
        f"{name}{part}"
        for name, kind in families.items()
        if kind == "histogram"
        for part in ("_bucket", "_sum", "_count")
    }
    return parts | {name for name, kind in families.items() if kind != "histogram"}


@pytest.fixture
def dashboard() -> dict[str, Any]:
    return json.loads((DOCS / "grafana-dashboard.json").read_text())


def test_the_document_lists_every_metric_with_its_type(families):
    rows = ROW.findall((DOCS / "metrics.md").read_text())
    assert dict(rows) == families and len(rows) == len(families)


def test_the_document_s_queries_and_buckets_are_right(series, families):
    text = (DOCS / "metrics.md").read_text()
    assert set(NAME.findall(text)) <= series | set(families)
    words = re.search(r"with buckets of ([\d, and\n]+)\.", text)
    assert words is not None
    assert tuple(map(int, re.findall(r"\d+", words[1]))) == LATENCY_BUCKETS_MS
    assert re.findall(r'code="(\w+)"', text) == [PendingLimitError.code]


def test_the_dashboard_s_queries_use_metrics_that_there_are(dashboard, series):
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    expressions += [variable["definition"] for variable in dashboard["templating"]["list"] if "definition" in variable]
    used = {name for expression in expressions for name in NAME.findall(expression)}
    assert len(expressions) > 50 and used <= series
    for expression in expressions:
        for open_, close in ("()", "{}", "[]"):
            assert expression.count(open_) == expression.count(close)
        # A counter or a bucket alone says nothing but how long the server has run.
        for name in NAME.findall(expression):
            if name.endswith(("_bucket", "_sum", "_count")) or (name.endswith("_total") and "restarts" not in name):
                assert name == "poot_kv_cache_blocks_total" or f"rate({name}" in expression, expression


def test_the_dashboard_shows_every_time_and_every_gauge_that_moves(dashboard, families):
    shown = json.dumps(dashboard)
    fixed = {"poot_decode_dispatch_count", "poot_prefill_dispatch_count"}
    assert [name for name in families if name not in shown and name not in fixed] == []


def test_the_dashboard_is_laid_out(dashboard):
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    boxes = [panel["gridPos"] for panel in panels]
    assert all(box["x"] >= 0 and box["x"] + box["w"] <= WIDTH for box in boxes)
    for a, b in combinations(boxes, 2):
        apart = (
            a["x"] + a["w"] <= b["x"]
            or b["x"] + b["w"] <= a["x"]
            or a["y"] + a["h"] <= b["y"]
            or b["y"] + b["h"] <= a["y"]
        )
        assert apart, (a, b)
    sources = {target["datasource"]["uid"] for panel in panels for target in panel.get("targets", ())}
    assert sources == {"${datasource}"}
