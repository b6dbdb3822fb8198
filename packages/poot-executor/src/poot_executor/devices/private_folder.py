"""Where compiled code and choices are kept between runs: nobody else may write there, since code is loaded and run."""

from __future__ import annotations

import os
import stat
import tempfile
from functools import cache
from pathlib import Path


def private_folder(name: str) -> Path:
    """~/.cache/poot/`name`, for its owner alone; where that cannot be had, one that goes with the process."""
    try:
        path = Path.home() / ".cache" / "poot" / name
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = path.lstat()  # not of what a link leads to, which is somebody's
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
            path.chmod(0o700)
            return path
    except (OSError, RuntimeError):
        pass
    path = Path(_temporary().name) / name
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def remove_temporary() -> None:
    """The one that serves where the other cannot be had, by a process that ends without taking itself apart."""
    if _temporary.cache_info().currsize:
        _temporary().cleanup()


@cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="poot-", ignore_cleanup_errors=True)
