"""The listener: Granian, embedded in this process's event loop, over the ASGI application."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import sys

from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server.embed import Server

from poot_serve.app import make_app
from poot_serve.errors import AddressError
from poot_serve.limits.host import Listener
from poot_serve.service import Service

_log = logging.getLogger(__name__)
BACKLOG = 1024
# Granian has no word for "any number" of connections.
UNLIMITED = 1 << 30
# What is open beside connections.
SPARE_FILES = 256
OPEN_TRIES = 500
OPEN_PAUSE_SECONDS = 0.01


def probe(listener: Listener) -> None:
    """Raises AddressError if the listener's address cannot be bound.

    Granian listens with SO_REUSEPORT, under which a second server on the port would silently share its clients.
    """
    family = socket.AF_INET6 if ":" in listener.address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((listener.address, listener.port))
        except OSError as error:
            raise AddressError(
                f"cannot listen on {listener.url}: {error.strerror}; choose another ADDR, which comes after MODEL"
            ) from None


async def until_open(listener: Listener, serving: asyncio.Task[None]) -> None:
    """Returns once the listener takes connections. Raises AddressError if `serving` ends first, or after seconds."""
    wildcard = ipaddress.ip_address(listener.address).is_unspecified
    local = "::1" if ":" in listener.address else "127.0.0.1"
    for _ in range(OPEN_TRIES):
        await asyncio.sleep(OPEN_PAUSE_SECONDS)
        if serving.done():
            raise AddressError(f"cannot listen on {listener.url}: {serving.exception()}")
        try:
            _, writer = await asyncio.open_connection(local if wildcard else listener.address, listener.port)
        except OSError:
            continue
        writer.close()
        return
    raise AddressError(f"the listener on {listener.url} does not open")


def allow_files(connections: int) -> bool:
    """Lets this process open a file for each of so many connections (0: any number), as far as the system allows.

    False, with a line in the log, if it allows fewer: then connections beyond that fail to open.
    """
    try:
        import resource
    except ImportError:  # Windows counts no files
        return True
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (sys.maxsize if limit == resource.RLIM_INFINITY else limit for limit in limits)
    wanted = connections + SPARE_FILES if connections else hard
    if soft < wanted:
        limit = min(wanted, hard)
        try:
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (resource.RLIM_INFINITY if limit == sys.maxsize else limit, limits[1])
            )
            soft = limit
        except (OSError, ValueError):  # some systems have a lower limit that they do not tell
            _log.debug("the limit of open files stays at %d", soft)
    if soft >= wanted:
        return True
    _log.warning(
        "this process may open %d files: fewer than --max-connections %d needs; raise the limit (ulimit -n)",
        soft, connections,
    )  # fmt: skip
    return False


def make_server(service: Service) -> Server:
    """Granian over the application: HTTP/1.1 alone, with the head's size and time bounded."""
    settings = service.settings
    listener = settings.listener
    return Server(
        make_app(service),
        address=listener.address,
        port=listener.port,
        interface=Interfaces.ASGINL,
        http=HTTPModes.http1,
        websockets=False,
        backlog=BACKLOG,
        backpressure=settings.max_connections or UNLIMITED,
        http1_settings=HTTP1Settings(
            header_read_timeout=round(settings.request_timeout_seconds * 1000), max_buffer_size=settings.max_head_bytes
        ),
        log_level=LogLevels.error,
        log_dictconfig={
            "loggers": {"_granian": {"handlers": [], "level": "ERROR", "propagate": True}},
        },
    )
