"""The console script. Nothing heavy is imported before the command line is known to be right.

From then on two processes start at once: this one, and the engine.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from poot_serve import __version__
from poot_serve.errors import SettingsError, StartUpError
from poot_serve.settings import Settings, help_text, log_level, parse

if TYPE_CHECKING:
    from poot_serve.logs import Outlet


def main() -> None:
    """Runs `poot-serve` and ends the process with one of the exit codes of `--help`."""
    _open_standard_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):  # the help may not fit the terminal's encoding
        sys.stdout.reconfigure(errors="backslashreplace")
    code = run(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # nobody reads it
            stream.flush()
    # Granian's runtime may panic while the interpreter is torn down, after everything that matters is done.
    os._exit(code)


def _open_standard_streams() -> None:
    """Standard streams that this process was started without are nowhere, and not the next files that it opens."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it takes the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))


def _print(text: str, stream: TextIO) -> None:
    with suppress(OSError):
        print(text, end="", file=stream, flush=True)


def run(arguments: list[str]) -> int:
    """The whole program but its exit; returns the exit code."""
    if any(argument in ("-h", "--help") for argument in arguments):
        _print(help_text(), sys.stdout)
        return 0
    if "--version" in arguments:
        _print(f"poot-serve {__version__}\n", sys.stdout)
        return 0
    try:
        settings, level = parse(arguments), log_level()
    except SettingsError as error:
        _print(f"poot-serve: {error}\n", sys.stderr)
        return 2
    from poot_serve.logs import logging_to_stderr

    with logging_to_stderr(level, settings.log_format) as outlet:
        return _serve(settings, outlet)


def _serve(settings: Settings, outlet: Outlet) -> int:
    import logging
    from contextlib import closing

    from poot_batch.process.launch import EarlyLaunch
    from poot_models.hub import HubId
    from poot_serve.ending import signals_end_at_once

    signals_end_at_once()
    try:
        # A model of the hub has no path before it is fetched.
        config = None if isinstance(settings.model, HubId) else settings.engine_config()
        with closing(EarlyLaunch(config)) as launch_engine:
            from poot_serve.launch import launch  # takes a second, in which the engine begins

            # What is said of the start goes beside the log; where that is JSON, through it.
            return launch(settings, launch_engine, sys.stderr if settings.log_format == "json" else outlet)
    except StartUpError as error:
        if settings.log_format == "json":
            logging.getLogger("poot_serve").critical("%s", error)
        else:
            outlet.write(f"poot-serve: {error}\n")
        return 2 if isinstance(error, SettingsError) else 1
    except Exception:
        logging.getLogger("poot_serve").critical("the server failed", exc_info=True)
        return 1
