"""Where compiled code and choices are kept between runs: nobody else may write there, since code is loaded and run."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path


def private_folder(name: str) -> Path:
    """~/.cache/poot/`name`, for its owner alone; a fresh temporary directory where that cannot be had."""
    try:
        path = Path.home() / ".cache" / "poot" / name
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = path.lstat()  # not of what a link leads to, which is somebody's
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
            path.chmod(0o700)
            return path
    except (OSError, RuntimeError):
        pass
    return Path(tempfile.mkdtemp(prefix="poot-"))
