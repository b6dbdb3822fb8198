"""The fetch of devices that copy at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class HostFetch:
    """See `poot_executor.devices.protocol.Fetch`. The bytes are there already."""

    data: npt.NDArray[np.uint8]

    def result(self) -> npt.NDArray[np.uint8]:
        return self.data
