"""What torch raises, as errors of this package."""

from __future__ import annotations

import torch

from poot_executor.errors import CapacityError, DeviceError, ExecutorError


def failure(error: RuntimeError) -> ExecutorError:
    """The typed error of what a call on the device raised.

    After a DeviceError nothing on this context works any more: only a new process can go on.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return CapacityError(f"the GPU has no memory left: {error}")
    return DeviceError(f"the GPU failed: {error}")
