"""What /metrics and /metrics/prometheus report, from one list of families."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import psutil
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from poot_batch.request import EngineInfo, EngineStats
from poot_batch.request.info import QUEUE_BUCKETS_MS

LATENCY_BUCKETS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 30000, 60000)
PROMETHEUS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MEBIBYTE = 1 << 20


class Metrics:
    """The server's own histograms, in milliseconds, and the families made of them and of the engine's figures."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._registry = CollectorRegistry(auto_describe=False)
        self.ttft = self._histogram("poot_ttft_ms", "Time to first token of streaming requests")
        self.itl = self._histogram("poot_itl_ms", "Inter-token latency")
        self.e2e = self._histogram("poot_request_e2e_ms", "End-to-end request latency")

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, buckets=LATENCY_BUCKETS_MS, registry=self._registry)

    def families(self, info: EngineInfo, stats: EngineStats) -> list[Metric]:
        """Every family, in a fixed order."""
        own = [_without_birth(family) for family in self._registry.collect()]
        return [*own, *_engine_families(info, stats), *_plan_families(info), *self._process_families()]

    def _process_families(self) -> Iterator[Metric]:
        memory = psutil.virtual_memory()
        yield _gauge("poot_cpu_percent", "System CPU utilisation since the last scrape", psutil.cpu_percent())
        yield _gauge("poot_mem_used_megabytes", "Used system memory", memory.used / _MEBIBYTE)
        yield _gauge("poot_mem_total_megabytes", "Total system memory", memory.total / _MEBIBYTE)
        yield _gauge("poot_uptime_seconds", "Server uptime", time.monotonic() - self._started)


class RequestTimer:
    """Times one request since `began` (of time.perf_counter); the time to the first token is of streamed ones alone."""

    def __init__(self, metrics: Metrics, began: float, *, streamed: bool) -> None:
        self._metrics = metrics
        self._streamed = streamed
        self._began = began
        # When each choice had its last tokens.
        self._last: dict[int, float] = {}

    def tokens(self, count: int, choice: int = 0) -> None:
        """`count` tokens of a choice have come together: each is taken to have cost its share of the gap before them.

        The time to the first token is that of whichever choice is first.
        """
        if count == 0:
            return
        now = time.perf_counter()
        last = self._last.get(choice)
        if last is not None:
            gap = (now - last) * 1000 / count
            for _ in range(count):
                self._metrics.itl.observe(gap)
        elif self._streamed and not self._last:
            self._metrics.ttft.observe((now - self._began) * 1000)
        self._last[choice] = now

    def finished(self) -> None:
        self._metrics.e2e.observe((time.perf_counter() - self._began) * 1000)


def to_prometheus(families: Iterable[Metric]) -> bytes:
    """The Prometheus text exposition of `families`."""
    return generate_latest(_Collected(list(families)))


def to_json(families: Iterable[Metric]) -> dict[str, object]:
    """Series name -> number, or for a histogram {count, sum, buckets: {upper bound: cumulative count}}."""
    made: dict[str, object] = {}
    for family in families:
        if family.type != "histogram":
            made.update({sample.name: sample.value for sample in family.samples})
            continue
        values = {sample.name.removeprefix(family.name): sample.value for sample in family.samples}
        buckets = {s.labels["le"]: int(s.value) for s in family.samples if s.name.endswith("_bucket")}
        made[family.name] = {"count": int(values["_count"]), "sum": values["_sum"], "buckets": buckets}
    return made


class _Collected:
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def _without_birth(family: Metric) -> Metric:
    """`family` without the time it was made, which the library adds as a series of its own."""
    made = Metric(family.name, family.documentation, family.type)
    made.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
    return made


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _engine_families(info: EngineInfo, stats: EngineStats) -> Iterator[Metric]:
    yield _counter("poot_requests_total", "Generation requests served", stats.requests_total)
    yield _counter("poot_requests_completed_total", "Requests that finished normally", stats.requests_completed)
    yield _counter("poot_requests_cancelled_total", "Requests evicted on client disconnect", stats.requests_cancelled)
    yield _counter("poot_requests_errored_total", "Requests that ended in an engine error", stats.requests_errored)
    yield _counter("poot_prompt_tokens_total", "Prompt tokens processed", stats.prompt_tokens)
    yield _counter("poot_completion_tokens_total", "Completion tokens generated", stats.completion_tokens)
    yield _counter("poot_steps_total", "Engine steps", stats.steps)
    yield _counter("poot_step_wall_seconds_total", "Host wall time of engine steps", stats.step_wall_seconds)
    yield _gauge("poot_inflight_requests", "Requests currently being processed", stats.inflight)
    yield _gauge("poot_queue_depth", "Requests waiting for a free decode slot", stats.queue_depth)
    yield _gauge("poot_batch_size", "Active decode slots in the last engine step", stats.batch_size)
    yield _gauge("poot_kv_cache_blocks_used", "Paged KV-cache blocks in use", stats.kv_blocks_used)
    yield _gauge(
        "poot_kv_cache_usage_ratio",
        "Paged KV-cache block utilisation (0..1)",
        _ratio(stats.kv_blocks_used, info.kv_blocks),
    )
    hits, queries = stats.prefix_hit_tokens, stats.prefix_query_tokens
    yield _gauge("poot_prefix_cache_hit_rate", "Cumulative prefix-cache hit rate (0..1)", _ratio(hits, queries))
    yield _counter("poot_prefix_cache_hit_tokens_total", "Prompt tokens served from a cached prefix", hits)
    yield _counter("poot_prefix_cache_query_tokens_total", "Prompt tokens looked up against the prefix cache", queries)
    if stats.step_device_seconds is not None:
        active = _ratio(stats.step_device_seconds, stats.step_wall_seconds)
        yield _gauge("poot_gpu_active_ratio", "Device-active fraction of step time (0..1)", min(active, 1.0))
    yield _gauge("poot_gpu_vram_used_bytes", "Device bytes the engine holds", stats.device_bytes)
    if stats.queue_wait_ms is not None:
        yield _queue_wait(stats.queue_wait_ms.buckets, stats.queue_wait_ms.sum)


def _queue_wait(counts: tuple[int, ...], total: float) -> Metric:
    """The engine's histogram: the number in each bucket of QUEUE_BUCKETS_MS, the last one above them all."""
    bounds = [*(str(float(bound)) for bound in QUEUE_BUCKETS_MS), "+Inf"]
    running, buckets = 0, []
    for bound, count in zip(bounds, counts, strict=True):
        running += count
        buckets.append((bound, running))
    return HistogramMetricFamily("poot_queue_wait_ms", "Time a request waited for a slot", buckets, sum_value=total)


def _plan_families(info: EngineInfo) -> Iterator[Metric]:
    """What the engine plan settled at the start."""
    yield _gauge("poot_slot_capacity", "Decode slot capacity", info.rows)
    yield _gauge("poot_kv_cache_blocks_total", "Paged KV-cache blocks in the shared pool", info.kv_blocks)
    yield _gauge("poot_gpu_weight_bytes", "Model weight bytes resident on the device", info.weight_bytes)
    yield _gauge("poot_gpu_kv_cache_bytes", "KV-pool bytes resident on the device", info.kv_bytes)
    yield _gauge("poot_gpu_resident_bytes", "Weights and KV pool on the device", info.weight_bytes + info.kv_bytes)
    yield _gauge("poot_gpu_vram_total_bytes", "Device memory found available at start", info.device_total_bytes)
    yield _gauge("poot_decode_dispatch_count", "Dispatches of the decode graph", info.decode_dispatches)
    yield _gauge(
        "poot_decode_activation_peak_bytes",
        "Peak transient activation bytes of the decode graph",
        info.decode_activation_peak_bytes,
    )
    yield _gauge("poot_prefill_dispatch_count", "Dispatches of the prefill graph", info.prefill_dispatches)
    yield _gauge(
        "poot_prefill_activation_peak_bytes",
        "Peak transient activation bytes of the prefill graph",
        info.prefill_activation_peak_bytes,
    )
