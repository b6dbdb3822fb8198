"""A CUDA device: what NVIDIA's cards have beyond what torch knows of any."""

from __future__ import annotations

import torch

from poot_executor.backends.cuda import nvml
from poot_executor.backends.triton.graphs import GraphDevice
from poot_executor.backends.triton.kernels import TRITON_KERNELS


class CudaDevice(GraphDevice):
    """See `poot_executor.devices.protocol.Device`."""

    backend = "ptx"
    dp4a = True

    def __init__(self) -> None:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        # Before the context exists, so that the driver's figure says what it takes.
        self._uuid = str(properties.uuid)
        card = nvml.card(self._uuid)
        self._used_before = card.used if card is not None else 0
        super().__init__(properties.name)
        self.pdl = properties.major >= 9
        if properties.major < 9:
            self.kernels = TRITON_KERNELS

    def driver_bytes(self) -> int:
        """See `poot_executor.devices.protocol.Metered`. Without NVML, what other programs hold is in it."""
        card = nvml.card(self._uuid)
        return super().driver_bytes() if card is None else max(0, card.used - self._used_before)
