"""The console script over the tests' engine, as a process of its own: `launched_server.py FAULT ARGUMENTS...`."""

from __future__ import annotations

import runpy
import sys
import tempfile
import types
from pathlib import Path


def main() -> None:
    fault, sys.argv[1:] = sys.argv[1], sys.argv[2:]
    tests = runpy.run_path(str(Path(__file__).with_name("conftest.py")))
    text = tests["build_text"](Path(tempfile.mkdtemp()))

    async def start_supervised(config, *, progress):
        from poot_batch.errors import StartError

        if fault == "start":
            raise StartError("the model does not fit: 3 MB are missing", reason_code="capacity")
        progress("weights", 0, 10)
        progress("weights", 10, 10)
        engine = tests["FakeEngine"](text.tokenizer)
        hold = [[40], tests["HOLD"]] if fault == "hold" else [[40]]
        engine.script = tests["Script"](steps=hold)
        if fault == "dead":
            engine.state = "dead"
        return engine

    client = types.ModuleType("poot_batch.process.supervisor")
    client.start_supervised = start_supervised
    sys.modules[client.__name__] = client
    from poot_serve import cli, launch

    launch.open_text = lambda path: text
    launch.ENGINE_CHECK_SECONDS = 0.1
    cli.main()


main()
