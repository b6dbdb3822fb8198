"""Device memory as torch tensors."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True, eq=False)
class TorchAllocation:
    """Bytes of device memory, as a flat uint8 tensor. `views` are those that have been made: layers share theirs."""

    tensor: torch.Tensor
    views: dict[object, torch.Tensor] = field(default_factory=dict, repr=False)

    @property
    def nbytes(self) -> int:
        return self.tensor.numel()
