"""The kernels of `source/`, compiled for the constants of a use and kept on disk."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from poot_executor.backends.cuda import nvrtc
from poot_executor.backends.cuda.nvrtc import ProgramError
from poot_executor.devices.kept import keep, kept
from poot_executor.devices.private_folder import private_folder

SOURCES = Path(__file__).parent / "source"
# Contraction of a*b+c is part of what a kernel computes: it is asked for, not left to a default.
_OPTIONS = ("-std=c++17", "--fmad=true")
_MOST_THREADS = 8


@dataclass(frozen=True, slots=True)
class Program:
    """A kernel of `source/`, compiled for constants.

    `source` is a file's name there and `kernel` its extern "C" function; `macros` are -D NAME=VALUE. `own`: with
    instructions that this very architecture has and later ones need not have (sm_90a).
    Raises ProgramError for macros that are no distinct names.
    """

    source: str
    kernel: str
    macros: tuple[tuple[str, int], ...] = ()
    own: bool = False

    def __post_init__(self) -> None:
        names = [name for name, _ in self.macros]
        wrong = [name for name in names if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or names.count(name) > 1]
        if wrong:
            raise ProgramError(f"{self.source}: no macros, or given twice: {', '.join(sorted(set(wrong)))}")


def cubin(program: Program, capability: tuple[int, int]) -> bytes:
    """The program's machine code for a compute capability, from disk if it is there.

    Kernels of one source and the same macros share theirs. Threads and processes may ask at once.
    Raises ProgramError, or NvrtcMissingError.
    """
    architecture = f"--gpu-architecture=sm_{capability[0]}{capability[1]}{'a' if program.own else ''}"
    options = (architecture, *_OPTIONS, *(f"-D{name}={int(value)}" for name, value in program.macros))
    source, headers = _texts(program.source)
    key = repr((program.source, source, sorted(headers.items()), options, nvrtc.version()))
    folder = _folder()
    path = folder / f"{hashlib.sha256(key.encode()).hexdigest()}.cubin" if folder else None
    image = kept(path) if path else None
    if image is None:
        image = nvrtc.compile_cubin(source, headers, options, name=program.source)
        if path:
            with contextlib.suppress(OSError):  # without the disk the next process compiles anew
                keep(path, image)
    return image


def compile_all(programs: Sequence[Program], capability: tuple[int, int]) -> tuple[bytes, ...]:
    """`cubin` of each, several at once. Raises what the first that fails does."""
    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as threads:
        return tuple(threads.map(lambda program: cubin(program, capability), programs))


def _texts(name: str) -> tuple[str, dict[str, str]]:
    """A source, and all headers that it may include."""
    try:
        source = (SOURCES / name).read_text("utf-8")
        return source, {path.name: path.read_text("utf-8") for path in SOURCES.glob("*.cuh")}
    except (OSError, UnicodeDecodeError) as error:
        raise ProgramError(f"{name} cannot be read: {error}") from error


@cache
def _folder() -> Path | None:
    """Where results are kept; asked for once, since it may be a new temporary directory each time."""
    try:
        return private_folder("cuda")
    except OSError:
        return None
