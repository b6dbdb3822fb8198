"""Whether a CUDA device opens here. Triton is imported only once it is clear that one does, and torch only when it is
asked: it takes seconds, in which the driver initialises itself.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from poot_executor.backends.cuda import nvml
from poot_executor.backends.cuda.libraries import begin_driver
from poot_executor.errors import BackendUnavailableError

if TYPE_CHECKING:
    from poot_executor.backends.cuda.device import CudaDevice

_LEAST_CAPABILITY = (8, 0)
_GIB = 2**30


class CudaBackend:
    name = "ptx"

    def describe(self) -> tuple[str, ...]:
        _require()
        import torch

        return tuple(_describe(index) for index in range(torch.cuda.device_count()))

    def open(self, *, threads: int | None = None) -> CudaDevice:
        begin_driver()
        _require()
        from poot_executor.backends.cuda.device import CudaDevice

        return CudaDevice()


def _describe(index: int) -> str:
    import torch

    properties = torch.cuda.get_device_properties(index)
    said = f"{properties.name}, {properties.total_memory / _GIB:.1f} GiB, "
    said += f"compute capability {properties.major}.{properties.minor}"
    card = nvml.card(str(properties.uuid))
    if card is None:
        return said
    said += f", {card.used / _GIB:.1f} GiB in use, driver {card.driver}"
    return f"{said}, {card.nvlinks} NVLinks" if card.nvlinks else said


def _require() -> None:
    """Raise BackendUnavailableError with the reason why no CUDA device opens."""
    try:
        import torch
    except ImportError as error:
        raise BackendUnavailableError(f"torch does not load: {error}") from error
    if torch.version.cuda is None:
        found = _seen(nvml.cards())
        advice = f", though {found} is here: install a build of torch for CUDA" if found else ""
        raise BackendUnavailableError(f"torch {torch.__version__} is built without CUDA{advice}")
    if not torch.cuda.is_available():
        raise BackendUnavailableError(f"torch finds no CUDA device: {_why_none(torch.version.cuda, nvml.cards())}")
    capability = torch.cuda.get_device_capability()
    if capability < _LEAST_CAPABILITY:
        raise BackendUnavailableError(f"compute capability {capability} is below {_LEAST_CAPABILITY}")
    if importlib.util.find_spec("triton") is None:
        raise BackendUnavailableError("triton is not installed")


def _why_none(built: str, cards: tuple[nvml.Card, ...]) -> str:
    """Why a torch that was built for CUDA `built` sees none of these cards."""
    if not cards:
        return "NVML finds none either (no NVIDIA card, no driver, or no package nvidia-ml-py to ask it)"
    # A driver runs every CUDA of its own major version, newer minor ones too.
    if cards[0].cuda[0] < int(built.split(".", maxsplit=1)[0]):
        return f"the driver of {_seen(cards)} is too old for torch's CUDA {built}: update it, or install an older torch"
    return (
        f"{_seen(cards)} is here and its driver is new enough: CUDA_VISIBLE_DEVICES hides it, or this user may not "
        "open /dev/nvidia*"
    )


def _seen(cards: tuple[nvml.Card, ...]) -> str:
    return ", ".join(map(str, cards))


BACKEND = CudaBackend()
