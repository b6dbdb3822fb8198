"""How the program ends at once: by a signal, whatever it is doing."""

from __future__ import annotations

import logging
import os
import signal

EXIT_SIGNAL = 128  # plus the signal's number, as a shell reports it
_log = logging.getLogger("poot_serve")


def end_at_once(number: int, frame: object = None) -> None:
    """What a signal does while nothing is served. The engine process ends by itself when this one is gone."""
    _log.warning("ended at once by signal %d", number)
    logging.shutdown()
    os._exit(EXIT_SIGNAL + number)


def signals_end_at_once() -> None:
    """From now on. In the main thread; until something else takes the signals, also where they were blocked before."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end_at_once)
