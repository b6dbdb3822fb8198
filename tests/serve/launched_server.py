"""The console script over the tests' engine, as a process of its own: `launched_server.py FAULT MODEL ARGUMENTS...`.

The engine process that it launches is real, and has nothing to do: its id is written into the folder MODEL.
"""

from __future__ import annotations

import runpy
import socket
import sys
import tempfile
import time
import types
from dataclasses import replace
from pathlib import Path


class Slow:
    """The server's modules take their time."""

    def find_spec(self, name, path, target=None):
        if name == "poot_serve.launch":
            time.sleep(60)


class Missing:
    """One of them needs a package that is not there."""

    def find_spec(self, name, path, target=None):
        if name == "poot_serve.launch":
            raise ModuleNotFoundError("No module named 'uninstalled'")


LOADS = {"slow": Slow, "import": Missing}


def main() -> None:
    fault, sys.argv[1:] = sys.argv[1], sys.argv[2:]
    tests = runpy.run_path(str(Path(__file__).with_name("conftest.py")))
    text = tests["build_text"](Path(tempfile.mkdtemp()))

    async def start_supervised(config, *, progress, launch):
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
    from poot_batch.process import launch as process
    from poot_serve import cli, launch

    launch_engine, unheard = process.launch_engine, []

    def launch_known():
        child = launch_engine()
        (Path(sys.argv[1]) / "engine").write_text(str(child.pid))
        # What it is told goes elsewhere.
        held = [child.channel, *socket.socketpair()]
        unheard.extend(held)
        return replace(child, channel=held[-1])

    process.launch_engine = launch_known
    if fault in LOADS:
        sys.meta_path.insert(0, LOADS[fault]())
        del sys.modules[launch.__name__]
    launch.open_text = lambda path: text
    launch.ENGINE_CHECK_SECONDS = 0.1
    cli.main()


main()
