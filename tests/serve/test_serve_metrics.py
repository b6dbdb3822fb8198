"""The engine's figures in both forms of /metrics."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from poot_batch.request import EngineStats
from poot_batch.request.info import QUEUE_BUCKETS_MS, Histogram
from poot_serve.metrics import (
    LATENCY_BUCKETS_MS,
    MOST_CODES,
    OTHER,
    Front,
    Metrics,
    RequestTimer,
    to_json,
    to_prometheus,
)

# The metrics that this server promises, by type; those of the second part are additions.
TYPES = {
    "poot_ttft_ms": "histogram",
    "poot_itl_ms": "histogram",
    "poot_request_e2e_ms": "histogram",
    "poot_queue_wait_ms": "histogram",
    "poot_requests_total": "counter",
    "poot_requests_completed_total": "counter",
    "poot_requests_cancelled_total": "counter",
    "poot_requests_errored_total": "counter",
    "poot_prompt_tokens_total": "counter",
    "poot_completion_tokens_total": "counter",
    "poot_inflight_requests": "gauge",
    "poot_queue_depth": "gauge",
    "poot_batch_size": "gauge",
    "poot_slot_capacity": "gauge",
    "poot_kv_cache_usage_ratio": "gauge",
    "poot_kv_cache_blocks_used": "gauge",
    "poot_kv_cache_blocks_total": "gauge",
    "poot_prefix_cache_hit_rate": "gauge",
    "poot_prefix_cache_hit_tokens_total": "counter",
    "poot_prefix_cache_query_tokens_total": "counter",
    "poot_gpu_active_ratio": "gauge",
    "poot_gpu_weight_bytes": "gauge",
    "poot_gpu_kv_cache_bytes": "gauge",
    "poot_gpu_resident_bytes": "gauge",
    "poot_gpu_vram_used_bytes": "gauge",
    "poot_gpu_vram_total_bytes": "gauge",
    "poot_decode_dispatch_count": "gauge",
    "poot_decode_activation_peak_bytes": "gauge",
    "poot_prefill_dispatch_count": "gauge",
    "poot_prefill_activation_peak_bytes": "gauge",
    "poot_cpu_percent": "gauge",
    "poot_mem_used_megabytes": "gauge",
    "poot_mem_total_megabytes": "gauge",
    "poot_uptime_seconds": "gauge",
    # Additions.
    "poot_steps_total": "counter",
    "poot_step_wall_seconds_total": "counter",
    "poot_step_busy_seconds_total": "counter",
    "poot_engine_up": "gauge",
    "poot_engine_restarts_total": "counter",
    "poot_pending_requests": "gauge",
    "poot_receiving_requests": "gauge",
    "poot_errors_total": "counter",
}


@pytest.fixture
def stats() -> EngineStats:
    waits = [0] * len(QUEUE_BUCKETS_MS) + [1]
    waits[2] = 3
    return EngineStats(
        step_wall_seconds=2.0,
        step_busy_seconds=1.0,
        step_device_seconds=1.5,
        queue_wait_ms=Histogram(buckets=tuple(waits), sum=90000.0, count=4),
        prefix_hit_tokens=5,
        prefix_query_tokens=20,
    )


def test_every_documented_name_is_there_with_its_type(engine, stats):
    """As the library's own parser reads it, which gives a counter's name without its suffix."""
    metrics = Metrics()
    metrics.errors.add("draining")
    families = metrics.families(engine.info, stats)
    assert set(to_json(families)) == set(TYPES)
    text = to_prometheus(families).decode()
    parsed = {
        family.name + ("_total" if family.type == "counter" else ""): family
        for family in text_string_to_metric_families(text)
    }
    assert {name: family.type for name, family in parsed.items()} == TYPES
    assert [name for name, family in parsed.items() if not family.documentation or not family.samples] == []
    assert "_created" not in text
    labels = {(name, key) for name, family in parsed.items() for sample in family.samples for key in sample.labels}
    histograms = {name for name, kind in TYPES.items() if kind == "histogram"}
    assert labels == {("poot_errors_total", "code"), *((name, "le") for name in histograms)}


def test_both_forms_say_the_same(engine, stats):
    families = Metrics().families(engine.info, stats, Front(pending=3, receiving=1))
    values = to_json(families)
    for family in text_string_to_metric_families(to_prometheus(families).decode()):
        for sample in family.samples:
            if family.type == "histogram":
                shown = values[family.name]
                part = sample.name.removeprefix(family.name)
                assert sample.value == (shown["buckets"][sample.labels["le"]] if part == "_bucket" else shown[part[1:]])
            else:
                assert values[sample.name] == sample.value
    assert (values["poot_pending_requests"], values["poot_receiving_requests"]) == (3, 1)


@pytest.mark.parametrize("bounds", [LATENCY_BUCKETS_MS, QUEUE_BUCKETS_MS])
def test_buckets_go_from_a_millisecond_to_a_minute(bounds):
    assert (bounds[0], bounds[-1]) == (1, 60_000) and list(bounds) == sorted(set(bounds))


def test_engine_histogram_is_cumulative(engine, stats):
    shown = to_json(Metrics().families(engine.info, stats))["poot_queue_wait_ms"]
    assert shown["count"] == 4 and shown["sum"] == 90000.0
    assert [shown["buckets"][bound] for bound in ("2.0", "5.0", "60000.0", "+Inf")] == [0, 3, 3, 4]


def test_ratios(engine, stats):
    values = to_json(Metrics().families(engine.info, stats))
    assert values["poot_gpu_active_ratio"] == 0.75 and values["poot_prefix_cache_hit_rate"] == 0.25
    idle = to_json(Metrics().families(engine.info, EngineStats()))
    assert idle["poot_prefix_cache_hit_rate"] == idle["poot_gpu_active_ratio"] == 0.0


@pytest.mark.parametrize(("busy", "ratio"), [(0.5, 0.25), (2.5, 1.0)])
def test_without_device_time_the_host_s_view_stands_in(engine, busy, ratio):
    """What is in flight between two calls of a step is busy too, so that there may be more of it than of steps."""
    stats = EngineStats(step_wall_seconds=2.0, step_busy_seconds=busy)
    values = to_json(Metrics().families(engine.info, stats))
    assert (values["poot_gpu_active_ratio"], values["poot_step_busy_seconds_total"]) == (ratio, busy)


def test_tokens_that_come_together_share_their_gap(engine):
    metrics = Metrics()
    for streamed, expected in ((True, 1), (False, 1)):
        timer = RequestTimer(metrics, 0.0, streamed=streamed)
        for count in (0, 2, 3):
            timer.tokens(count)
        timer.finished()
        values = to_json(metrics.families(engine.info, EngineStats()))
        assert values["poot_ttft_ms"]["count"] == expected
    assert values["poot_itl_ms"]["count"] == 6 and values["poot_request_e2e_ms"]["count"] == 2


def test_choices_do_not_share_their_gaps(engine):
    """Each choice's first tokens have no gap before them, and the request has one time to its first token."""
    metrics = Metrics()
    timer = RequestTimer(metrics, 0.0, streamed=True)
    for choice in (0, 1, 0, 1, 2):
        timer.tokens(1, choice)
    values = to_json(metrics.families(engine.info, EngineStats()))
    assert (values["poot_itl_ms"]["count"], values["poot_ttft_ms"]["count"]) == (2, 1)


def test_codes_are_bounded(engine):
    metrics = Metrics()
    for code in (*(f"code_{number}" for number in range(MOST_CODES + 10)), "code_0"):
        metrics.errors.add(code)
    shown = to_json(metrics.families(engine.info, EngineStats()))["poot_errors_total"]
    assert len(shown) == MOST_CODES + 1
    assert (shown["code_0"], shown["code_1"], shown[OTHER]) == (2, 1, 10)


def figures(served):
    return served.client.get("/metrics").json()


def test_every_error_is_counted_once(served):
    """Refused before the engine, failed before and after the stream began, and gone without a word."""
    before = figures(served)["poot_errors_total"]
    path, body = "/v1/completions", {"prompt": "a", "max_tokens": 5}
    assert served.client.get("/nowhere").status_code == 404
    assert served.client.post(path, json={**body, "n": 0}).status_code == 400
    served.answer(steps=[], finish="error", error_code="non_finite_logits")
    assert served.client.post(path, json=body).status_code == 500
    assert served.client.post(path, json={**body, "stream": True}).status_code == 500
    served.answer(steps=[[40], [41]], finish="error", error_code="engine_dead")
    assert "engine_dead" in served.client.post(path, json={**body, "stream": True}).text
    after = figures(served)["poot_errors_total"]
    more = {code: count - before.get(code, 0) for code, count in after.items() if count != before.get(code, 0)}
    assert more == {"not_found": 1, "invalid_value": 1, "non_finite_logits": 2, "engine_dead": 1}
