"""Whether a ROCm device opens here. Triton is imported only once it is clear that one does."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import torch

from poot_executor.errors import BackendUnavailableError

if TYPE_CHECKING:
    from poot_executor.backends.rocm.device import RocmDevice

_GIB = 2**30


class RocmBackend:
    name = "rocm"

    def describe(self) -> tuple[str, ...]:
        _require()
        return tuple(_describe(index) for index in range(torch.cuda.device_count()))

    def open(self, *, threads: int | None = None) -> RocmDevice:
        _require()
        from poot_executor.backends.rocm.device import RocmDevice

        return RocmDevice()


def _describe(index: int) -> str:
    properties = torch.cuda.get_device_properties(index)
    return f"{properties.name}, {properties.total_memory / _GIB:.1f} GiB, {properties.gcnArchName}"


def _require() -> None:
    """Raise BackendUnavailableError with the reason why no ROCm device opens."""
    if torch.version.hip is None:
        raise BackendUnavailableError(f"torch {torch.__version__} is built without ROCm")
    if not torch.cuda.is_available():
        raise BackendUnavailableError(
            f"torch finds no ROCm device (HIP {torch.version.hip}): there is no AMD GPU that this release runs, "
            "HIP_VISIBLE_DEVICES hides it, or this user may not open /dev/kfd"
        )
    if importlib.util.find_spec("triton") is None:
        raise BackendUnavailableError("triton is not installed: a ROCm build of torch brings its own")


BACKEND = RocmBackend()
