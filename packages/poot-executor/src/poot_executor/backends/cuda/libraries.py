"""Where NVIDIA's libraries lie: those of torch's wheels, of an environment, of a toolkit; and the driver's."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

DRIVER = "libcuda.so.1"


def begin_driver() -> None:
    """Have the driver initialise itself in a thread: up to a quarter of a second, without the interpreter's lock.

    It makes no context. Should it fail, whoever asks it next hears why.
    """
    threading.Thread(target=_begin_driver, name="cuInit", daemon=True).start()


def _begin_driver() -> None:
    with suppress(OSError, AttributeError):  # no such library, or another one
        ctypes.CDLL(DRIVER).cuInit(0)


def places(cuda: str, library: str, wheel: str) -> Iterator[str]:
    """Where `library` of this CUDA ("13.2") may be: paths, then names for the system to find.

    `wheel`: its folder in wheels for CUDA 12, which have one each; later ones share theirs.
    """
    major = cuda.split(".", maxsplit=1)[0]
    name = f"{library}.so.{major}"
    wheels = importlib.util.find_spec("nvidia")
    for folder in (wheels.submodule_search_locations or ()) if wheels else ():
        yield from (f"{folder}/cu{major}/lib/{name}", f"{folder}/{wheel}/lib/{name}")
    yield f"{sys.prefix}/lib/{name}"
    yield from (name, f"/usr/local/cuda-{cuda}/lib64/{name}", f"/usr/local/cuda/lib64/{name}", f"{library}.so")
