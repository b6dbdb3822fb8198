"""The C library as Python calls."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from poot_executor.backends.cpu.native.compile import CompileError, compiled
from poot_executor.encodings.types import Dense, Encoding

_log = logging.getLogger(__name__)
# In the order of the C file's tables.
ENCODINGS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16", "F32")
MAX_ROWS = 16  # rows of x in one product
_MAX_OUTPUTS = 2**24


class NativeLibrary:
    """The library's functions; what they do is said in the C files. One thread calls; workers are the library's own.

    Addresses are integers and unchecked: callers pass views that stay alive during the call.
    """

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        self._threads = _function(library, "threads", "i", returns=ctypes.c_int)
        self.matmul = _function(library, "matmul", "ipplpllll")
        self.decode = _function(library, "decode", "ipplll")
        self.rms_norm = _function(library, "rms_norm", "plppffppll")
        self.attend = _function(library, "attend", "ppppppllllff")
        self.gated = _function(library, "gated", "plplli")
        self.rotary_kv_write = _function(library, "rotary_kv_write", "plplplpppffpppllllli")

    def start_threads(self, threads: int) -> int:
        """Have at least this many threads, the caller's among them; how many there are."""
        return int(self._threads(threads))

    @staticmethod
    def number(encoding: Encoding, columns: int, rows: int) -> int | None:
        """The encoding's number in the library; None where it cannot take such a weight."""
        name = encoding.dtype if isinstance(encoding, Dense) else encoding.name
        if name not in ENCODINGS or columns % 32 or rows >= _MAX_OUTPUTS:
            return None
        return ENCODINGS.index(name)


_TYPES: dict[str, Any] = {"i": ctypes.c_int, "l": ctypes.c_long, "f": ctypes.c_float, "p": ctypes.c_void_p}


def _function(library: ctypes.CDLL, name: str, signature: str, returns: Any = None) -> Callable[..., Any]:
    """`poot_<name>`, with an argument for each letter of the signature."""
    function = library[f"poot_{name}"]
    function.argtypes = [_TYPES[letter] for letter in signature]
    function.restype = returns
    return function


@cache
def load_library() -> NativeLibrary | str:
    """The library, compiled if need be, or why there is none."""
    try:
        return NativeLibrary(compiled(Path(__file__).parent))
    except (CompileError, OSError) as error:
        _log.warning("no kernels in C, torch's are slower and take more memory: %s", error)
        return str(error)
