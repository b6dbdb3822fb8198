"""The engine's figures in both forms of /metrics."""

from __future__ import annotations

import pytest

from poot_batch.request import EngineStats
from poot_batch.request.info import QUEUE_BUCKETS_MS, Histogram
from poot_serve.metrics import Metrics, RequestTimer, to_json, to_prometheus

NAMES = [
    "poot_ttft_ms",
    "poot_itl_ms",
    "poot_request_e2e_ms",
    "poot_queue_wait_ms",
    "poot_requests_total",
    "poot_requests_completed_total",
    "poot_requests_cancelled_total",
    "poot_requests_errored_total",
    "poot_prompt_tokens_total",
    "poot_completion_tokens_total",
    "poot_inflight_requests",
    "poot_queue_depth",
    "poot_batch_size",
    "poot_slot_capacity",
    "poot_kv_cache_usage_ratio",
    "poot_kv_cache_blocks_used",
    "poot_kv_cache_blocks_total",
    "poot_prefix_cache_hit_rate",
    "poot_prefix_cache_hit_tokens_total",
    "poot_prefix_cache_query_tokens_total",
    "poot_gpu_active_ratio",
    "poot_gpu_weight_bytes",
    "poot_gpu_kv_cache_bytes",
    "poot_gpu_resident_bytes",
    "poot_gpu_vram_used_bytes",
    "poot_gpu_vram_total_bytes",
    "poot_decode_dispatch_count",
    "poot_decode_activation_peak_bytes",
    "poot_prefill_dispatch_count",
    "poot_prefill_activation_peak_bytes",
    "poot_cpu_percent",
    "poot_mem_used_megabytes",
    "poot_mem_total_megabytes",
    "poot_uptime_seconds",
]


@pytest.fixture
def stats() -> EngineStats:
    waits = [0] * len(QUEUE_BUCKETS_MS) + [1]
    waits[2] = 3
    return EngineStats(
        step_wall_seconds=2.0,
        step_device_seconds=1.5,
        queue_wait_ms=Histogram(buckets=tuple(waits), sum=90000.0, count=4),
        prefix_hit_tokens=5,
        prefix_query_tokens=20,
    )


def test_every_documented_name_is_there(engine, stats):
    families = Metrics().families(engine.info, stats)
    values, lines = to_json(families), to_prometheus(families).decode()
    assert [name for name in NAMES if name not in values] == []
    assert [name for name in NAMES if f"\n{name}" not in lines] == []
    assert "_created" not in lines


def test_engine_histogram_is_cumulative(engine, stats):
    shown = to_json(Metrics().families(engine.info, stats))["poot_queue_wait_ms"]
    assert shown["count"] == 4 and shown["sum"] == 90000.0
    assert [shown["buckets"][bound] for bound in ("2.0", "5.0", "60000.0", "+Inf")] == [0, 3, 3, 4]


def test_ratios(engine, stats):
    values = to_json(Metrics().families(engine.info, stats))
    assert values["poot_gpu_active_ratio"] == 0.75 and values["poot_prefix_cache_hit_rate"] == 0.25
    idle = to_json(Metrics().families(engine.info, EngineStats()))
    assert idle["poot_prefix_cache_hit_rate"] == 0.0 and "poot_gpu_active_ratio" not in idle


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
