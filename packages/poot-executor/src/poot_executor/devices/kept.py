"""Compiled code on disk, with a digest behind it: to load what was cut or damaged would end the process.

Loaders of machine code pass over what lies behind it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

_DIGEST_BYTES = 32


def kept(path: Path) -> bytes | None:
    """What a file keeps; None where it is absent, or not what was written."""
    try:
        held = path.read_bytes()
    except OSError:
        return None
    data, digest = held[:-_DIGEST_BYTES], held[-_DIGEST_BYTES:]
    return data if data and hashlib.sha256(data).digest() == digest else None


def keep(path: Path, data: bytes) -> None:
    """Put it there at one stroke, in place of what is there. Raises OSError."""
    unfinished = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as made:
            unfinished = Path(made.name)
            made.write(data + hashlib.sha256(data).digest())
            made.flush()
            os.fsync(made.fileno())
        unfinished.replace(path)
    except OSError:
        if unfinished is not None:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
        raise
