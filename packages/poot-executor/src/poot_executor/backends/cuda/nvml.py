"""What NVIDIA's management library knows of the cards in this machine, whether torch can use them or not."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Card:
    """One card. Bytes are bytes, of all programs together; `cuda` is the newest CUDA that the driver runs."""

    name: str
    uuid: str
    total: int
    used: int
    driver: str
    cuda: tuple[int, int]
    nvlinks: int

    def __str__(self) -> str:
        return f"{self.name} (driver {self.driver}, up to CUDA {self.cuda[0]}.{self.cuda[1]})"


def cards() -> tuple[Card, ...]:
    """Every card; none where the Python package, the library or the driver is absent."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return ()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return ()
    try:
        driver, cuda = _text(nvml.nvmlSystemGetDriverVersion()), int(nvml.nvmlSystemGetCudaDriverVersion())
        version = (cuda // 1000, cuda % 1000 // 10)
        return tuple(_card(nvml, index, driver, version) for index in range(nvml.nvmlDeviceGetCount()))
    except nvml.NVMLError:
        return ()
    finally:
        nvml.nvmlShutdown()


def card(uuid: str) -> Card | None:
    """The card of this UUID, with or without NVML's "GPU-" before it."""
    return next((card for card in cards() if card.uuid.removeprefix("GPU-") == uuid.removeprefix("GPU-")), None)


def _card(nvml: Any, index: int, driver: str, cuda: tuple[int, int]) -> Card:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    name, uuid = _text(nvml.nvmlDeviceGetName(handle)), _text(nvml.nvmlDeviceGetUUID(handle))
    return Card(name, uuid, int(memory.total), int(memory.used), driver, cuda, _nvlinks(nvml, handle))


def _nvlinks(nvml: Any, handle: Any) -> int:
    """Links that are up."""
    up = 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            up += bool(nvml.nvmlDeviceGetNvLinkState(handle, link))
        except nvml.NVMLError:  # no such link, or none at all
            break
    return up


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
