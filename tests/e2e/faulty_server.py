"""The console script over an engine with a fault armed: `faulty_server.py FAULT ARGUMENTS...`.

FAULT is that of tests/batch/faulty_worker.py, or "none". It is armed in the first engine alone; an engine is given up
after two silent seconds.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from poot_batch.process import launch as process
from poot_batch.process import supervisor
from poot_batch.process.launch import WORKER, launch_engine
from poot_batch.process.watch import Patience
from poot_serve import cli, launch

WORKER_FILE = Path(__file__).parents[1] / "batch" / "faulty_worker.py"
PATIENCE = Patience(look=0.1, stalled=1.2, lost=2.4)


def main() -> None:
    fault, sys.argv[1:] = sys.argv[1], sys.argv[2:]
    commands = iter(() if fault == "none" else ((sys.executable, str(WORKER_FILE), fault),))
    process.launch_engine = lambda: launch_engine(next(commands, WORKER))
    launch.start_supervised = partial(supervisor.start_supervised, patience=PATIENCE)
    cli.main()


main()
