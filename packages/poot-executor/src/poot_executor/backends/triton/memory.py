"""Device memory as torch tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, eq=False)
class TorchAllocation:
    """Bytes of device memory, as a flat uint8 tensor."""

    tensor: torch.Tensor

    @property
    def nbytes(self) -> int:
        return self.tensor.numel()
