"""The lazy table of backends, and the order in which `auto` tries them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from poot_executor.devices.protocol import Backend, Device
from poot_executor.errors import BackendUnavailableError

# Command-line name -> module that defines BACKEND. A module is imported only when its backend is asked for.
BACKENDS: dict[str, str] = {
    "ptx": "poot_executor.backends.cuda.backend",
    "rocm": "poot_executor.backends.rocm.backend",
    "cpu": "poot_executor.backends.cpu.device",
    "null": "poot_executor.backends.null.device",
}

# Named by the documentation, not in this version: they are refused by name rather than as unknown words.
PLANNED = ("wgpu", "vulkan")

# `null` computes nothing: it is for tests, so no message names it and `auto` never takes it.
_OFFERED = ", ".join(name for name in BACKENDS if name != "null")
AUTO = ("ptx", "rocm", "wgpu", "cpu")


@dataclass(frozen=True, slots=True)
class Probe:
    """What `doctor` prints of one backend: its devices, or why it does not open."""

    backend: str
    devices: tuple[str, ...]
    refusal: str | None


def load_backend(name: str) -> Backend:
    """The backend of this name. Raises BackendUnavailableError."""
    if name in PLANNED:
        raise BackendUnavailableError(f"backend {name} is not part of this version; choose one of auto, {_OFFERED}")
    if name not in BACKENDS:
        raise BackendUnavailableError(f"there is no backend {name!r}; choose one of auto, {_OFFERED}")
    try:
        backend: Backend = importlib.import_module(BACKENDS[name]).BACKEND
    except ImportError as error:
        raise BackendUnavailableError(f"backend {name} needs a package that is not installed: {error}") from error
    return backend


def open_device(name: str = "auto", *, threads: int | None = None) -> Device:
    """Open a device of a backend; `auto` takes the first of ptx, rocm, wgpu, cpu that opens.

    `threads` bounds host threads (None: the backend's own choice). Raises BackendUnavailableError with every refusal.
    """
    if threads is not None and threads < 1:
        raise BackendUnavailableError(f"threads must be at least 1, not {threads}")
    if name != "auto":
        return load_backend(name).open(threads=threads)
    refusals = []
    for candidate in AUTO:
        if candidate in PLANNED:
            continue
        try:
            return load_backend(candidate).open(threads=threads)
        except BackendUnavailableError as error:
            refusals.append(f"{candidate}: {error}")
    raise BackendUnavailableError("no backend opens: " + "; ".join(refusals))


def probe() -> tuple[Probe, ...]:
    """Ask every backend for its devices."""
    found = []
    for name in (*PLANNED, *BACKENDS):
        try:
            found.append(Probe(name, load_backend(name).describe(), None))
        except BackendUnavailableError as error:
            found.append(Probe(name, (), str(error)))
    return tuple(found)
