"""Where NVIDIA's libraries lie: those of torch's wheels, of an environment, of a toolkit."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator


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
