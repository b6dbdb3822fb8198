"""How an engine is started, what it settled on, and what it counts."""

from __future__ import annotations

import msgspec


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine process is started with. `rows` and `max_seq` are wishes: the memory fit may lower them.

    `default_max_tokens` is what a request gets that names no number (None: the rest of its row).
    """

    model: str
    backend: str = "auto"
    rows: int = 4
    max_seq: int = 4096
    threads: int | None = None
    prefix_cache: bool = True
    default_max_tokens: int | None = None


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine settled on once the model was prepared. Bytes are bytes; `notes` say what differs from the
    wishes, what the device holds and how long the start took, and `report` the kernels chosen; both are for people."""

    model: str
    architecture: str
    backend: str
    device: str
    rows: int
    max_seq: int
    vocab_size: int
    eos_ids: tuple[int, ...]
    kv_block_size: int
    kv_blocks: int
    weight_bytes: int
    kv_bytes: int
    workspace_bytes: int
    device_total_bytes: int
    decode_dispatches: int
    decode_activation_peak_bytes: int
    prefill_dispatches: int
    prefill_activation_peak_bytes: int
    start_seconds: dict[str, float] = {}
    notes: tuple[str, ...] = ()
    report: tuple[str, ...] = ()


# Upper bounds, in milliseconds, of the queue-wait histogram.
QUEUE_BUCKETS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 30000, 60000)


class Histogram(msgspec.Struct, frozen=True, array_like=True):
    """Milliseconds: the number in each bucket of QUEUE_BUCKETS_MS and above the last one, their sum and count."""

    buckets: tuple[int, ...]
    sum: float
    count: int


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters and gauges of the engine loop, as /metrics reports them. Counters never fall; gauges are 0 when idle.

    `step_wall_seconds` is the time that the loop spent in steps, `step_busy_seconds` that during which a step was on
    the device as the host sees it, from its submission to its result; `step_device_seconds` is what the device measured
    itself, None if it was not asked to. `restarts` counts the engine processes that took the place of a lost one.
    """

    requests_total: int = 0
    requests_completed: int = 0
    requests_cancelled: int = 0
    requests_errored: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    inflight: int = 0
    queue_depth: int = 0
    batch_size: int = 0
    kv_blocks_used: int = 0
    prefix_hit_tokens: int = 0
    prefix_query_tokens: int = 0
    steps: int = 0
    step_wall_seconds: float = 0.0
    step_busy_seconds: float = 0.0
    step_device_seconds: float | None = None
    device_bytes: int = 0
    queue_wait_ms: Histogram | None = None
    restarts: int = 0
