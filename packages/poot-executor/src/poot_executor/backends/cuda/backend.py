"""Whether a CUDA device opens here. Triton is imported only once it is clear that one does."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import torch

from poot_executor.errors import BackendUnavailableError

if TYPE_CHECKING:
    from poot_executor.backends.cuda.device import CudaDevice

_LEAST_CAPABILITY = (8, 0)


class CudaBackend:
    name = "ptx"

    def describe(self) -> tuple[str, ...]:
        _require()
        return tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))

    def open(self, *, threads: int | None = None) -> CudaDevice:
        _require()
        from poot_executor.backends.cuda.device import CudaDevice

        return CudaDevice()


def _require() -> None:
    """Raise BackendUnavailableError with the reason why no CUDA device opens."""
    if torch.version.cuda is None:
        raise BackendUnavailableError(f"torch {torch.__version__} is built without CUDA")
    if not torch.cuda.is_available():
        raise BackendUnavailableError("torch finds no CUDA device: there is none, or its driver is too old")
    capability = torch.cuda.get_device_capability()
    if capability < _LEAST_CAPABILITY:
        raise BackendUnavailableError(f"compute capability {capability} is below {_LEAST_CAPABILITY}")
    if importlib.util.find_spec("triton") is None:
        raise BackendUnavailableError("triton is not installed")


BACKEND = CudaBackend()
