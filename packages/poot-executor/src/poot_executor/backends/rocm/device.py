"""A ROCm device. Its kernels are those of Triton that run anywhere; entries are HIP graphs."""

from __future__ import annotations

import torch

from poot_executor.backends.triton.graphs import GraphDevice
from poot_executor.backends.triton.kernels import TRITON_KERNELS


class RocmDevice(GraphDevice):
    """See `poot_executor.devices.protocol.Device`. torch calls a HIP device "cuda"."""

    backend = "rocm"
    ahead = False  # Triton 3.6 cannot compile pages that are looked up ahead for RDNA

    def __init__(self) -> None:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        super().__init__(f"{properties.name} ({properties.gcnArchName})")
        self.kernels = TRITON_KERNELS
