"""What /metrics and /metrics/prometheus report, from one list of families."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import psutil
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from poot_batch.request import EngineInfo, EngineStats
from poot_batch.request.info import QUEUE_BUCKETS_MS

LATENCY_BUCKETS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 30000, 60000)
PROMETHEUS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MEBIBYTE = 1 << 20
# Codes are those of this project's error classes, some fifty. Whatever comes beyond this many is counted as OTHER.
MOST_CODES = 64
OTHER = "other"


@dataclass(frozen=True, slots=True)
class Front:
    """What the server is doing at a scrape: whether its engine lives, the POSTs that it answers, and those of them
    whose body it reads."""

    engine_up: bool = True
    pending: int = 0
    receiving: int = 0


class Metrics:
    """The server's own figures, and the families made of them and of the engine's. Histograms are in milliseconds."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        psutil.cpu_percent()  # the first call begins the time that the next one tells of
        self.errors = ErrorCounts()
        self.ttft = Latency("poot_ttft_ms", "Time to first token of streaming requests")
        self.itl = Latency("poot_itl_ms", "Inter-token latency")
        self.e2e = Latency("poot_request_e2e_ms", "End-to-end request latency")

    def families(self, info: EngineInfo, stats: EngineStats, front: Front | None = None) -> list[Metric]:
        """Every family, in a fixed order."""
        own = [latency.family() for latency in (self.ttft, self.itl, self.e2e)]
        engine = [*_engine_families(info, stats), *_cache_families(info, stats), *_step_families(stats)]
        plan, here = _plan_families(info), _front_families(front or Front(), stats.restarts)
        return [*own, *engine, *plan, *here, self.errors.family(), *self._process_families()]

    def _process_families(self) -> Iterator[Metric]:
        memory = psutil.virtual_memory()
        yield _gauge("poot_cpu_percent", "System CPU utilisation since the last scrape", psutil.cpu_percent())
        yield _gauge("poot_mem_used_megabytes", "Used system memory", memory.used / _MEBIBYTE)
        yield _gauge("poot_mem_total_megabytes", "Total system memory", memory.total / _MEBIBYTE)
        yield _gauge("poot_uptime_seconds", "Server uptime", time.monotonic() - self._started)


class Latency:
    """A histogram in milliseconds with the buckets of LATENCY_BUCKETS_MS.

    Of the event loop alone, and so without the library's lock: every token of every stream is observed here.
    """

    __slots__ = ("_counts", "_name", "_sum", "_text")

    def __init__(self, name: str, text: str) -> None:
        self._name, self._text = name, text
        self._counts = [0] * (len(LATENCY_BUCKETS_MS) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(LATENCY_BUCKETS_MS, value)] += times
        self._sum += value * times

    def family(self) -> Metric:
        return _histogram(self._name, self._text, LATENCY_BUCKETS_MS, self._counts, self._sum)


class ErrorCounts:
    """Requests that ended with an error, each once, whatever they asked for, by the error's code."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, code: str) -> None:
        if code not in self._counts and len(self._counts) >= MOST_CODES:
            code = OTHER
        self._counts[code] = self._counts.get(code, 0) + 1

    def family(self) -> Metric:
        text = "Requests that ended with an error, by its code"
        family = CounterMetricFamily("poot_errors_total", text, labels=["code"])
        for code, count in sorted(self._counts.items()):
            family.add_metric([code], count)
        return family


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
            self._metrics.itl.observe((now - last) * 1000 / count, count)
        elif self._streamed and not self._last:
            self._metrics.ttft.observe((now - self._began) * 1000)
        self._last[choice] = now

    def failed(self, code: str) -> None:
        """The request's stream ends with an error of this code."""
        self._metrics.errors.add(code)

    def finished(self) -> None:
        self._metrics.e2e.observe((time.perf_counter() - self._began) * 1000)


def to_prometheus(families: Iterable[Metric]) -> bytes:
    """The Prometheus text exposition of `families`."""
    return generate_latest(_Collected(list(families)))


def to_json(families: Iterable[Metric]) -> dict[str, object]:
    """Series name -> number, for a histogram {count, sum, buckets: {upper bound: cumulative count}}, and for one with
    codes {code: number}."""
    made: dict[str, object] = {}
    for family in families:
        if not family.samples or "code" in family.samples[0].labels:
            made[f"{family.name}_total"] = {sample.labels["code"]: sample.value for sample in family.samples}
            continue
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
    yield _gauge("poot_inflight_requests", "Requests currently being processed", stats.inflight)
    yield _gauge("poot_queue_depth", "Requests waiting for a free decode slot", stats.queue_depth)
    yield _gauge("poot_batch_size", "Active decode slots in the last engine step", stats.batch_size)
    yield _gauge("poot_gpu_vram_used_bytes", "Device bytes the engine holds", stats.device_bytes)
    if stats.queue_wait_ms is not None:
        waits = stats.queue_wait_ms
        text = "Time a request waited for a free decode slot"
        yield _histogram("poot_queue_wait_ms", text, QUEUE_BUCKETS_MS, waits.buckets, waits.sum)


def _cache_families(info: EngineInfo, stats: EngineStats) -> Iterator[Metric]:
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


def _step_families(stats: EngineStats) -> Iterator[Metric]:
    """Where the device was not asked for its own time, the host's view of it stands in."""
    measured = stats.step_device_seconds
    busy = stats.step_busy_seconds if measured is None else measured
    active = min(1.0, _ratio(busy, stats.step_wall_seconds))
    yield _counter("poot_steps_total", "Engine steps", stats.steps)
    yield _counter("poot_step_wall_seconds_total", "Host wall time of engine steps", stats.step_wall_seconds)
    yield _counter(
        "poot_step_busy_seconds_total", "Time with a step on the device, as the host sees it", stats.step_busy_seconds
    )
    yield _gauge("poot_gpu_active_ratio", "Device-active fraction of step time (0..1)", active)


def _histogram(name: str, text: str, bounds: Sequence[int], counts: Sequence[int], total: float) -> Metric:
    """`counts`: the number in each bucket, at most its bound and above the one before, and last that above them all."""
    running, buckets = 0, []
    for bound, count in zip([*(str(float(bound)) for bound in bounds), "+Inf"], counts, strict=True):
        running += count
        buckets.append((bound, running))
    return HistogramMetricFamily(name, text, buckets, sum_value=total)


def _front_families(front: Front, restarts: int) -> Iterator[Metric]:
    yield _gauge("poot_engine_up", "Whether the engine process is up and heard (0 or 1)", int(front.engine_up))
    yield _counter("poot_engine_restarts_total", "Engine processes started in place of a lost one", restarts)
    yield _gauge("poot_pending_requests", "POST requests being answered", front.pending)
    yield _gauge("poot_receiving_requests", "POST requests whose body is being read", front.receiving)


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
