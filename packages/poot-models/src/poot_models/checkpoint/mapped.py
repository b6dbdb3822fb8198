"""Files as read-only maps, and names from files as they may be shown."""

from __future__ import annotations

import mmap
import stat
from pathlib import Path

from poot_models.errors import CheckpointFormatError, CheckpointMissingError

_GIT_LFS = b"version https://git-lfs"
_PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def map_file(path: Path) -> mmap.mmap:
    """The whole of a regular file, read-only. The map lives as long as something views it.

    CheckpointMissingError: no such file, or it may not be read. CheckpointFormatError: no regular file, an empty
    one, a Git LFS pointer, or a PyTorch pickle.
    """
    _regular_file_size(path)
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: emptied since its size was read
        raise CheckpointMissingError(f"{path} cannot be read: {error}") from error
    head = mapped[: len(_GIT_LFS)]
    if head == _GIT_LFS:
        raise CheckpointFormatError(f"{path} is a Git LFS pointer, not the file itself: fetch it with `git lfs pull`")
    # A safetensors file may begin with the same two bytes, its header's length: in that the bytes from the fourth on
    # are zero, since no header is 16 MiB long.
    if head.startswith(_PICKLES) and head[3:8] != bytes(5):
        raise CheckpointFormatError(
            f"{path} is a PyTorch pickle, which can run code when it is read, so it never is: "
            "convert the model to safetensors or GGUF"
        )
    return mapped


def read_file(path: Path, limit: int) -> bytes:
    """A whole small file. Errors: as `map_file`, and CheckpointFormatError above `limit` bytes."""
    size = _regular_file_size(path)
    if size > limit:
        raise CheckpointFormatError(f"{path} has {size} bytes; at most {limit} are read")
    try:
        with path.open("rb") as file:
            return file.read(limit)
    except OSError as error:
        raise CheckpointMissingError(f"{path} cannot be read: {error}") from error


def is_present(path: Path) -> bool:
    """Whether something is at `path`.

    CheckpointMissingError: it cannot be told (a folder that may not be read), or a link is there that leads nowhere.
    """
    try:
        exists, link = path.exists(), path.is_symlink()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise CheckpointMissingError(f"{path} cannot be read: {error}") from error
    if link and not exists:
        raise CheckpointMissingError(f"{path} is a link to a file that is not there: fetch it again, or mend the link")
    return exists


def shown(name: str) -> str:
    """A name from a file, quoted, escaped and cut for a message."""
    return repr(name) if len(name) <= 80 else f"{name[:80]!r}..."


def _regular_file_size(path: Path) -> int:
    try:
        status = path.stat()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise CheckpointMissingError(f"{path} cannot be read: {error}") from error
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointFormatError(f"{path} is not a regular file")
    if status.st_size == 0:
        raise CheckpointFormatError(f"{path} is empty: its download or conversion did not finish")
    return status.st_size
