"""The console script. Nothing heavy is imported before the command line is known to be right.

From then on two processes start at once: this one, and the engine.
"""

from __future__ import annotations

import io
import os
import sys

from poot_serve import __version__
from poot_serve.errors import SettingsError, StartUpError
from poot_serve.settings import Settings, help_text, log_level, parse


def main() -> None:
    """Runs `poot-serve` and ends the process with one of the exit codes of `--help`."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # the help may not fit the terminal's encoding
        sys.stdout.reconfigure(errors="backslashreplace")
    code = run(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Granian's runtime may panic while the interpreter is torn down, after everything that matters is done.
    os._exit(code)


def run(arguments: list[str]) -> int:
    """The whole program but its exit; returns the exit code."""
    if any(argument in ("-h", "--help") for argument in arguments):
        print(help_text(), end="")
        return 0
    if "--version" in arguments:
        print(f"poot-serve {__version__}")
        return 0
    try:
        settings, level = parse(arguments), log_level()
    except SettingsError as error:
        print(f"poot-serve: {error}", file=sys.stderr)
        return 2
    from poot_serve.logs import logging_to_stderr

    with logging_to_stderr(level, settings.log_format):
        return _serve(settings)


def _serve(settings: Settings) -> int:
    import logging
    from contextlib import closing

    from poot_batch.process.launch import EarlyLaunch
    from poot_models.hub import HubId

    try:
        # A model of the hub has no path before it is fetched.
        config = None if isinstance(settings.model, HubId) else settings.engine_config()
        with closing(EarlyLaunch(config)) as launch_engine:
            from poot_serve.launch import launch  # takes a second, in which the engine begins

            return launch(settings, launch_engine)
    except StartUpError as error:
        if settings.log_format == "json":
            logging.getLogger("poot_serve").critical("%s", error)
        else:
            print(f"poot-serve: {error}", file=sys.stderr)
        return 2 if isinstance(error, SettingsError) else 1
    except Exception:
        logging.getLogger("poot_serve").critical("the server failed", exc_info=True)
        return 1
