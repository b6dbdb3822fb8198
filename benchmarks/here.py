"""Whether there is what a benchmark measures."""

from __future__ import annotations

from poot_executor.backends.cuda.backend import BACKEND
from poot_executor.errors import BackendUnavailableError


def require_gpu(backend: str = "ptx") -> None:
    """End with the reason where `backend` is the one of CUDA and no device opens."""
    if backend != "ptx":
        return
    try:
        BACKEND.describe()
    except BackendUnavailableError as error:
        raise SystemExit(f"this is measured on a GPU: {error}") from None
