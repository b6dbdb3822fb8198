"""How OpenMP's threads wait, which can be said only before torch is loaded, and only by the environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_POLICY = "OMP_WAIT_POLICY"


@contextmanager
def threads_that_sleep() -> Iterator[None]:
    """If torch is loaded in here, its threads sleep when they wait.

    Threads that spin at the end of torch's short parallel regions hold the cores that others need, and with other
    processes on the machine a region of microseconds then takes milliseconds. A user's own setting wins, and the
    environment is as it was afterwards.
    """
    if _POLICY in os.environ or "torch" in sys.modules:
        yield
        return
    os.environ[_POLICY] = "passive"
    try:
        yield
    finally:
        del os.environ[_POLICY]
