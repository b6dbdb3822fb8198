"""The C library as Python calls."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

from poot_executor.backends.cpu.native.compile import CompileError, compiled
from poot_executor.encodings.types import Dense, Encoding

# In the order of the C file's tables.
ENCODINGS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16", "F32")
MAX_ROWS = 16  # rows of x in one product
_MAX_OUTPUTS = 2**24


class NativeLibrary:
    """`matmul` and `decode` over packed weights. One thread calls; the library has workers of its own.

    Addresses are integers and unchecked: callers pass views that stay alive during the call.
    """

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        integer, pointer, long = ctypes.c_int, ctypes.c_void_p, ctypes.c_long
        library.poot_threads.argtypes = [integer]
        library.poot_threads.restype = integer
        self.matmul = library.poot_matmul
        self.matmul.argtypes = [integer, pointer, pointer, long, pointer, long, long, long, long]
        self.matmul.restype = None
        self.decode = library.poot_decode
        self.decode.argtypes = [integer, pointer, pointer, long, long, long]
        self.decode.restype = None
        self._threads = library.poot_threads

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


@cache
def load_library() -> NativeLibrary | str:
    """The library, compiled if need be, or why there is none."""
    try:
        return NativeLibrary(compiled(Path(__file__).with_name("matmul.c")))
    except (CompileError, OSError) as error:
        return str(error)
