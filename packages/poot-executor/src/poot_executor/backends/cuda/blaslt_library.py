"""cuBLASLt by its C interface (cublasLt.h of CUDA 12 and 13): structures, signatures, errors."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch

from poot_executor.backends.cuda.libraries import places
from poot_executor.backends.cuda.nvrtc import ProgramError
from poot_executor.errors import CapacityError, DeviceError

# CUBLAS_STATUS_... of a call. The device is well after these: not initialized, invalid value, architecture mismatch,
# not supported, license error.
_ALLOC_FAILED, _REFUSALS = 3, {1, 7, 8, 15, 16}


class ProductError(ProgramError):
    """A product, or a way to make it, that cuBLASLt refuses."""

    code = "product"


class BlasLtMissingError(ProductError):
    """There is no cuBLASLt that fits torch, with the places that were tried."""

    code = "cublaslt_missing"


class Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t: 64 bytes that only the library knows."""

    _fields_ = (("data", ctypes.c_uint64 * 8),)


class Found(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: 96 bytes. The others count only if the state, at 72, is 0."""

    _fields_ = (
        ("algorithm", Algorithm),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


_POINTER, _NUMBER, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_MADE, _ALGORITHM, _FOUND = ctypes.POINTER(_POINTER), ctypes.POINTER(Algorithm), ctypes.POINTER(Found)
_SET = (_POINTER, _NUMBER, _POINTER, _SIZE)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cublasLtGetVersion": (),
    "cublasLtGetStatusName": (_NUMBER,),
    "cublasLtGetStatusString": (_NUMBER,),
    "cublasLtCreate": (_MADE,),
    "cublasLtMatmulDescCreate": (_MADE, _NUMBER, _NUMBER),
    "cublasLtMatmulDescSetAttribute": _SET,
    "cublasLtMatmulDescDestroy": (_POINTER,),
    "cublasLtMatrixLayoutCreate": (_MADE, _NUMBER, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64),
    "cublasLtMatrixLayoutSetAttribute": _SET,
    "cublasLtMatrixLayoutDestroy": (_POINTER,),
    "cublasLtMatmulPreferenceCreate": (_MADE,),
    "cublasLtMatmulPreferenceSetAttribute": _SET,
    "cublasLtMatmulPreferenceDestroy": (_POINTER,),
    # The handle, what is computed, the layouts of A, B, C and D, ...
    "cublasLtMatmulAlgoGetHeuristic": (*(_POINTER,) * 7, _NUMBER, _FOUND, ctypes.POINTER(_NUMBER)),
    "cublasLtMatmulAlgoInit": (_POINTER, *(_NUMBER,) * 7, _ALGORITHM),
    "cublasLtMatmulAlgoCheck": (*(_POINTER,) * 6, _ALGORITHM, _FOUND),
    "cublasLtMatmulAlgoConfigSetAttribute": (_ALGORITHM, _NUMBER, _POINTER, _SIZE),
    "cublasLtMatmulAlgoConfigGetAttribute": (_ALGORITHM, _NUMBER, _POINTER, _SIZE, ctypes.POINTER(_SIZE)),
    # The handle, what is computed, alpha, A, B, beta, C, D, each matrix before its layout, ...
    "cublasLtMatmul": (*(_POINTER,) * 12, _ALGORITHM, _POINTER, _SIZE, _POINTER),
}

# Of the others it is a status.
_RESULTS: dict[str, Any] = {
    "cublasLtGetVersion": _SIZE,
    "cublasLtGetStatusName": ctypes.c_char_p,
    "cublasLtGetStatusString": ctypes.c_char_p,
}


@cache
def library() -> ctypes.CDLL:
    """The cuBLASLt that torch multiplies with, with its signatures. Raises BlasLtMissingError."""
    if torch.version.cuda is None:
        raise BlasLtMissingError(f"torch {torch.__version__} is built without CUDA")
    major = int(torch.version.cuda.split(".", maxsplit=1)[0])
    # By its name first: torch has loaded it, wherever it lies.
    tried = list(dict.fromkeys((f"libcublasLt.so.{major}", *places(torch.version.cuda, "libcublasLt", "cublas"))))
    for place in tried:
        opened = _open(place)
        if opened is not None and opened.cublasLtGetVersion() // 10_000 == major:
            return opened
    raise BlasLtMissingError(f"no cuBLASLt of CUDA {major}, which torch is built for, in any of: {', '.join(tried)}")


def version() -> int:
    """cuBLASLt's version, 130401 for 13.4.1. Raises BlasLtMissingError."""
    return int(library().cublasLtGetVersion())


@cache
def handle(device: int) -> ctypes.c_void_p:
    """The library's handle on torch's device of this number, which is the current one. Raises ProductError."""
    made = ctypes.c_void_p()
    require(library().cublasLtCreate(ctypes.byref(made)), f"opening cuBLASLt on GPU {device}")
    return made


def require(status: int, doing: str) -> None:
    """Raise ProductError for the status of what does not reach the device."""
    if status:
        raise ProductError(f"{doing}: {_said(status)}")


def require_launched(status: int, doing: str) -> None:
    """Raise the error of a launch's status: CapacityError, ProductError for a refusal, else DeviceError."""
    if not status:
        return
    message = f"{doing}: {_said(status)}"
    if status == _ALLOC_FAILED:
        raise CapacityError(f"the GPU has no memory left: {message}")
    raise ProductError(message) if status in _REFUSALS else DeviceError(f"the GPU failed: {message}")


def _open(place: str) -> ctypes.CDLL | None:
    """A library with all that is asked of it; None where there is none."""
    try:
        opened = ctypes.CDLL(place)
        for name, arguments in _SIGNATURES.items():
            function = getattr(opened, name)
            function.argtypes, function.restype = arguments, _RESULTS.get(name, _NUMBER)
    except (OSError, AttributeError):
        return None
    return opened


def _said(status: int) -> str:
    name, meaning = library().cublasLtGetStatusName(status), library().cublasLtGetStatusString(status)
    return f"status {status}, {(name or b'').decode(errors='replace')} ({(meaning or b'').decode(errors='replace')})"
