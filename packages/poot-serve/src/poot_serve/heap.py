"""Memory that was freed goes back to the system: glibc keeps what small allocations held, a heap for each thread."""

from __future__ import annotations

import ctypes
from collections.abc import Callable


def find_trim() -> Callable[[], None]:
    """A call that gives back what it can, in a millisecond or some more; one that does nothing where the C library has
    no such function."""
    try:
        trim = ctypes.CDLL(None).malloc_trim  # glibc, malloc_trim(3)
    except (AttributeError, OSError, TypeError):
        return lambda: None
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return lambda: trim(0)
