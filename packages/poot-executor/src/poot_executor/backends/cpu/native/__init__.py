"""Products with packed weights in C, compiled on the user's machine where it has a compiler; torch does without."""

from poot_executor.backends.cpu.native.library import NativeLibrary, load_library

__all__ = ["NativeLibrary", "load_library"]
