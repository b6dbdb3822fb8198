"""What the kernel holds back for a client that does not read, and for how long."""

from __future__ import annotations

import logging
import os
import socket
import stat
from collections.abc import Iterator

from poot_serve.limits.host import Listener

_log = logging.getLogger(__name__)
# The kernel would let a connection grow to megabytes, which is the whole answer of a client that never reads: no write
# would ever wait. The kernel doubles this number, and what a client reads on another continent still fits.
SEND_BUFFER_BYTES = 128 << 10
# Where a process finds its own open files.
_OWN_FILES = "/dev/fd"


def bound_writes(listener: Listener, seconds: float) -> bool:
    """Bounds what waits unread on connections that `listener` takes from now on, in bytes and in `seconds`.

    A client that takes nothing of what waits for it for so long is cut off by the kernel (TCP_USER_TIMEOUT of tcp(7)),
    also where its answer is whole and Granian holds it. Connections inherit both from the listening socket, which
    Granian opens itself and does not hand out, so it is looked for among this process's files. False, with a line in
    the log, where that or the timeout cannot be had; the writes of streams are timed all the same.
    """
    timeout: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)
    found = False
    for opened in () if timeout is None else _listening(listener):
        assert timeout is not None
        with opened:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            opened.setsockopt(socket.IPPROTO_TCP, timeout, round(seconds * 1000))
            found = True
    if not found:
        _log.info("this system sets no bounds on what waits for clients that do not read")
    return found


def _listening(listener: Listener) -> Iterator[socket.socket]:
    """Duplicates of this process's sockets that listen where `listener` says."""
    try:
        names = os.listdir(_OWN_FILES)
    except OSError:
        return
    for name in names:
        try:
            # No other file is touched: to close a duplicate of one would give up this process's locks on it.
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            opened = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # closed since it was listed
            continue
        if _listens(opened, listener):
            yield opened
        else:
            opened.close()


def _listens(opened: socket.socket, listener: Listener) -> bool:
    try:
        if opened.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        if not opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return False
        return tuple(opened.getsockname()[:2]) == (listener.address, listener.port)
    except OSError:
        return False
