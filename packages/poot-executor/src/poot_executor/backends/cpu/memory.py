"""Host memory: what a container or machine leaves for a model, and aligned allocations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

_MIB = 2**20
_UNBOUND = 2**62


@dataclass(frozen=True, slots=True, eq=False)
class HostAllocation:
    """Bytes of host memory; pages are committed when first touched."""

    tensor: torch.Tensor

    @property
    def nbytes(self) -> int:
        return self.tensor.numel()


def allocate(nbytes: int, alignment: int) -> HostAllocation:
    raw = torch.empty(nbytes + alignment, dtype=torch.uint8)
    skip = -raw.data_ptr() % alignment
    return HostAllocation(raw[skip : skip + nbytes])


def available() -> int:
    """Free bytes of the machine or of the control group that confines this process, whichever is less."""
    return min(int(psutil.virtual_memory().available), _cgroup_room())


def reserve(free: int) -> int:
    """Bytes left to the interpreter, libraries and the system: 512 MiB, or a sixteenth if that is more."""
    return max(512 * _MIB, free // 16)


def _cgroup_room(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Limit minus use of control group v2; a huge number where there is none.

    Cached pages of files (a mapped checkpoint's too) count as used there, but are given back when memory is wanted.
    """
    try:
        limit = (root / "memory.max").read_text().strip()
        used = int((root / "memory.current").read_text())
        fields = dict(line.split() for line in (root / "memory.stat").read_text().splitlines())
        cached = int(fields["active_file"]) + int(fields["inactive_file"])
    except (OSError, ValueError, KeyError):
        return _UNBOUND
    return max(0, int(limit) - max(0, used - cached)) if limit.isdigit() else _UNBOUND
