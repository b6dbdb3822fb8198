"""A model path to a running engine: what start-up does, in order, and how long each part took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from poot_batch.engine import Engine
from poot_batch.errors import StartError
from poot_batch.kv import KvSpace
from poot_batch.openmp import threads_that_sleep
from poot_batch.request import EngineConfig, EngineInfo
from poot_executor.devices import open_device
from poot_models import load
from poot_models.text import TextModel, open_text

if TYPE_CHECKING:
    from poot_batch.driver import Prepared

MAX_ROWS = 4096
# One token of a prompt and one of its answer.
MIN_SEQ = 2
MAX_SEQ = 2**24
MAX_THREADS = 1024

Progress = Callable[[str, int, int], None]


def build_engine(
    config: EngineConfig, progress: Progress = lambda phase, done, total: None, *, encodes: bool = True
) -> tuple[Engine, TextModel]:
    """Load, fit, prepare.

    The model's headers are checked before torch is imported, so that a bad file is refused at once. `progress(phase,
    done, total)` has phases "model", "device", "weights" (bytes) and "entries". Without `encodes` the text side only
    decodes, which is all that the engine itself needs (see `poot_models.text.load_text`): read while torch is imported,
    the whole of it would hold that up. Raises ModelError, ExecutorError, and StartError for a configuration that is
    none.
    """
    _check(config)
    times = _Times()
    progress("model", 0, 1)
    model = load(config.model)
    times.mark("model")
    progress("device", 0, 1)
    with ThreadPoolExecutor(1) as pool, threads_that_sleep():
        loading = pool.submit(open_text, model.path, encodes=encodes)
        # This brings torch, unless there is no such backend.
        device = open_device(config.backend, threads=config.threads)
        times.mark("device")
        text = loading.result()
        times.mark("text")
    from poot_batch.driver import ModelDriver, prepare_model, prompt_step_ms

    ends = text.tokenizer.eog_ids

    def passed_on(phase: str, done: int, total: int) -> None:
        times.until(phase, "fit")
        progress(phase, done, total)

    prepared = prepare_model(
        model, device, rows=config.rows, max_seq=config.max_seq, ends=tuple(sorted(ends)), progress=passed_on
    )
    times.end()
    shape = prepared.shape
    engine = Engine(
        ModelDriver(prepared),
        KvSpace(shape.block, prepared.fit.blocks, shape.tables, model=config.model, caching=config.prefix_cache),
        _info(config, prepared, ends, times.seconds),
        text.tokenizer,
        capacity=shape.tokens,
        default_max_tokens=config.default_max_tokens,
        prompt_step_ms=prompt_step_ms(device),
    )
    return engine, text


def _check(config: EngineConfig) -> None:
    try:
        msgspec.convert(msgspec.structs.asdict(config), EngineConfig)
    except msgspec.ValidationError as error:
        raise StartError(str(error).replace("$.", ""), reason_code="invalid_config") from None
    for name, value, least, most in (("rows", config.rows, 1, MAX_ROWS), ("max_seq", config.max_seq, MIN_SEQ, MAX_SEQ)):
        if not least <= value <= most:
            message = f"{name} must be between {least} and {most}, not {value}"
            raise StartError(message, reason_code="invalid_config")
    if config.default_max_tokens is not None and config.default_max_tokens < 1:
        message = f"default_max_tokens must be at least 1, not {config.default_max_tokens}"
        raise StartError(message, reason_code="invalid_config")
    if config.threads is not None and not 1 <= config.threads <= MAX_THREADS:
        message = f"threads must be between 1 and {MAX_THREADS}, not {config.threads}"
        raise StartError(message, reason_code="invalid_config")


class _Times:
    """Seconds between marks, and of phases that others name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()
        self._phase: str | None = None

    def until(self, phase: str, before: str) -> None:
        """`phase` is under way: where it has just begun, the one before it, or else `before`, has ended."""
        if phase != self._phase:
            self.mark(self._phase or before)
            self._phase = phase

    def end(self) -> None:
        """The phase under way has ended."""
        self.mark(self._phase or "prepare")

    def mark(self, phase: str) -> None:
        now = time.perf_counter()
        self.seconds[phase] = now - self._last
        self._last = now


def _memory(prepared: Prepared) -> str:
    """What the device holds by class, and where its driver says so, what that does not account for."""
    from poot_executor.devices import Metered

    device, account = prepared.device, prepared.device.account
    held = ", ".join(f"{kind} {_gib(nbytes)}" for kind, nbytes in account.snapshot().items() if nbytes)
    said = f"{len(prepared.entries.keys())} entries; {held}; account {_gib(account.total)}"
    if isinstance(device, Metered):
        driver = device.driver_bytes()
        said += f", driver {_gib(driver)} (context, libraries, rounding {_gib(driver - account.total)})"
    return f"{said} of {_gib(prepared.fit.capacity)} found free"


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB"


def _info(config: EngineConfig, prepared: Prepared, ends: Iterable[int], seconds: dict[str, float]) -> EngineInfo:
    from poot_executor.runtime import EntryKey

    entries, found, model = prepared.entries.compiled.entries, prepared.fit, prepared.model
    steps = sorted((key for key in entries if key.program == "step"), key=lambda key: key.capacity)
    decode, prefill = (entries[key] for key in (steps[0], steps[-1]))
    head = entries[EntryKey("head", found.rows)]
    account = prepared.device.account
    fixed = account.of("weights") + account.of("kv")
    notes = list(found.reasons)
    if config.max_seq > model.max_positions:
        notes.append(f"max_seq {config.max_seq} is cut to the model's own limit of {model.max_positions} positions")
    notes += [_memory(prepared), "start: " + ", ".join(f"{phase} {took:.1f} s" for phase, took in seconds.items())]
    report = [*(f"unused tensor {name}" for name in model.ignored)]
    report += [entry.report() for entry in entries.values()]
    return EngineInfo(
        model=config.model,
        architecture=model.architecture,
        backend=prepared.device.backend,
        device=prepared.device.name,
        rows=found.rows,
        max_seq=found.max_seq,
        vocab_size=model.vocab_size,
        eos_ids=tuple(sorted(ends)),
        kv_block_size=prepared.shape.block,
        kv_blocks=sum(found.blocks),
        weight_bytes=account.of("weights"),
        kv_bytes=account.of("kv"),
        workspace_bytes=account.total - fixed,
        device_total_bytes=found.capacity,
        decode_dispatches=decode.dispatches + head.dispatches,
        decode_activation_peak_bytes=max(decode.activation_peak, head.activation_peak),
        prefill_dispatches=prefill.dispatches + head.dispatches,
        prefill_activation_peak_bytes=max(prefill.activation_peak, head.activation_peak),
        start_seconds=seconds,
        notes=tuple(notes),
        report=tuple(report),
    )
