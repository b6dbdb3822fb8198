"""CUDA C++ to machine code by NVRTC, the compiler that torch's wheels bring: no toolkit is needed, and no GPU."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from poot_executor.backends.cuda.libraries import places
from poot_executor.errors import ExecutorError


class ProgramError(ExecutorError):
    """A program that does not compile, or whose compiled form does not load. `log` is what the compiler said."""

    code = "program"

    def __init__(self, message: str, *, log: str = "") -> None:
        super().__init__(f"{message}:\n{log}" if log else message)
        self.log = log


class NvrtcMissingError(ProgramError):
    """There is no NVRTC that fits torch, with the places that were tried."""

    code = "nvrtc_missing"


def version() -> tuple[int, int]:
    """NVRTC's version. Raises NvrtcMissingError."""
    return _version(_library())


def architectures() -> frozenset[int]:
    """The compute capabilities that NVRTC compiles for, 90 for 9.0. Raises NvrtcMissingError or ProgramError."""
    library, count = _library(), ctypes.c_int()
    _require(library, library.nvrtcGetNumSupportedArchs(ctypes.byref(count)), "its architectures")
    found = (ctypes.c_int * count.value)()
    _require(library, library.nvrtcGetSupportedArchs(found), "its architectures")
    return frozenset(found)


def compile_cubin(
    source: str, headers: Mapping[str, str], options: Sequence[str], *, name: str = "program.cu"
) -> bytes:
    """The machine code of `source` for the real architecture that the options name.

    `headers` are texts under the names by which they are included; no file is read. `name` is for messages. Any number
    of threads may compile at once. Raises ProgramError with the compiler's log, or NvrtcMissingError.
    """
    library, program = _library(), ctypes.c_void_p()
    given = (source.encode(), name.encode(), len(headers), _strings(headers.values()), _strings(headers))
    _require(library, library.nvrtcCreateProgram(ctypes.byref(program), *given), name)
    try:
        status = library.nvrtcCompileProgram(program, len(options), _strings(options))
        if status:
            log = _read(library, program, "ProgramLog", name).rstrip(b"\0").decode(errors="replace").strip()
            raise ProgramError(
                f"{name} does not compile with {' '.join(options)} ({_reason(library, status)})", log=log
            )
        image = _read(library, program, "CUBIN", name)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))
    if not image:
        raise ProgramError(f"{name} has no machine code: its options {list(options)} name no real architecture")
    return image


@cache
def _library() -> ctypes.CDLL:
    # torch first: it may load an NVRTC itself, and one of each major version is enough in a process.
    import torch

    if torch.version.cuda is None:
        raise NvrtcMissingError(f"torch {torch.__version__} is built without CUDA")
    major, tried = int(torch.version.cuda.split(".", maxsplit=1)[0]), []
    for place in _places(torch.version.cuda):
        library = _open(place)
        # What is no NVRTC, or a broken one, is passed over: there may be a good one elsewhere.
        with contextlib.suppress(AttributeError, ProgramError):
            if library is not None and _version(library)[0] == major:
                return library
        tried.append(place)
    raise NvrtcMissingError(f"no NVRTC of CUDA {major}, which torch is built for, in any of: {', '.join(tried)}")


def _places(cuda: str) -> Iterator[str]:
    """Where an NVRTC for this CUDA may be."""
    return places(cuda, "libnvrtc", "cuda_nvrtc")


def _open(place: str) -> ctypes.CDLL | None:
    path = Path(place)
    if path.is_absolute():
        # NVRTC asks for its built-in functions by name; what is loaded already is found wherever it lies.
        for builtins in path.parent.glob("libnvrtc-builtins.so.*"):
            with contextlib.suppress(OSError):
                ctypes.CDLL(str(builtins))
    try:
        library = ctypes.CDLL(place)
    except OSError:
        return None
    with contextlib.suppress(AttributeError):
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


def _version(library: ctypes.CDLL) -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _require(library, library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "NVRTC's version")
    return major.value, minor.value


def _read(library: ctypes.CDLL, program: ctypes.c_void_p, what: str, name: str) -> bytes:
    size = ctypes.c_size_t()
    _require(library, library[f"nvrtcGet{what}Size"](program, ctypes.byref(size)), name)
    data = ctypes.create_string_buffer(size.value)
    _require(library, library[f"nvrtcGet{what}"](program, data), name)
    return data.raw


def _require(library: ctypes.CDLL, status: int, name: str) -> None:
    if status:
        raise ProgramError(f"NVRTC failed on {name}: {_reason(library, status)}")


def _reason(library: ctypes.CDLL, status: int) -> str:
    return bytes(library.nvrtcGetErrorString(status)).decode(errors="replace")


def _strings(texts: Iterable[str]) -> ctypes.Array[ctypes.c_char_p]:
    encoded = [text.encode() for text in texts]
    return (ctypes.c_char_p * len(encoded))(*encoded)
