"""How broken model files are refused: each of a corpus is made, opened as a start would open it, and measured.

    python benchmarks/broken_files.py                print a line a file: seconds, peak MB, message
    python benchmarks/broken_files.py --check        also print PASS or FAIL, and exit 1 on FAIL
    python benchmarks/broken_files.py --only TEXT    only files whose name contains TEXT

A file passes when the model, its text side or both are refused by a ModelError that names the fault and the file, when
nothing else is raised, and when that takes under 1 s and 100 MB. Each is opened in a process of its own, a fork of one
that has imported everything and opened a sound model; the megabytes are what the peak lies above the memory before.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from broken_directories import directory_cases
from broken_gguf import gguf_cases
from broken_model import Case, sound_gguf, write_directory

from poot_models import load
from poot_models.errors import ModelError
from poot_models.text import open_text

LIMIT_S, LIMIT_MB = 1.0, 100.0
_KILL_S = 30.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """`refusals`: messages of ModelErrors. `fault`: what went wrong instead. `mb`: peak above the memory before."""

    refusals: list[str]
    fault: str | None
    seconds: float
    mb: float


def cases() -> list[Case]:
    """The whole corpus; names are unique."""
    found = [*gguf_cases(), *directory_cases()]
    assert len({case.name for case in found}) == len(found)
    return found


def open_broken(path: Path) -> list[str]:
    """Open the model and its text, as a start does: the messages of those that are refused."""
    opens: Sequence[Callable[[Path], object]] = (load, open_text)
    refusals = []
    for opened in opens:
        try:
            opened(path)
        except ModelError as error:
            refusals.append(str(error))
    return refusals


def verdict(case: Case, path: Path, outcome: Outcome) -> str | None:
    """None, or what is wrong with how the file was refused."""
    said = outcome.refusals
    checks = (
        (outcome.fault is None, outcome.fault or ""),
        (said, "was not refused"),
        (any(re.search(case.words, message) for message in said), f"no message says {case.words!r}"),
        (all(path.name in message for message in said), f"a message does not name {path.name}"),
        (all(message.isprintable() and len(message) < 2000 for message in said), "a message is no readable line"),
        (outcome.seconds <= LIMIT_S, f"took {outcome.seconds:.2f} s"),
        (outcome.mb <= LIMIT_MB, f"took {outcome.mb:.0f} MB"),
    )
    return next((wrong for right, wrong in checks if not right), None)


def _memory(field: str) -> float:
    """MB of this process: VmRSS now, VmHWM at most."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def _measured(path: Path) -> Outcome:
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, began = _memory("VmRSS"), time.perf_counter()
    fault, refusals = None, []
    try:
        refusals = open_broken(path)
    except BaseException as error:  # whatever it is, the corpus goes on and the line says it
        fault = f"raised {type(error).__name__}: {str(error)[:200]}"
    return Outcome(refusals, fault, time.perf_counter() - began, max(0.0, _memory("VmHWM") - before))


def _in_a_fork(path: Path) -> Outcome:
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        with os.fdopen(writes, "w") as answer:
            json.dump(asdict(_measured(path)), answer)
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as answer:
        began, said = time.perf_counter(), ""
        while time.perf_counter() - began < _KILL_S:
            if select.select([answer], [], [], 0.5)[0]:
                said = answer.read()
                break
        else:
            os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if not said:
        return Outcome([], "hung or died", time.perf_counter() - began, 0.0)
    return Outcome(**json.loads(said))


def _warm() -> None:
    """Import all that opening needs, on sound models of both formats."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        path.write_bytes(sound_gguf().build())
        for sound in (path, write_directory(Path(folder))):
            assert open_broken(sound) == []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="print PASS or FAIL, and exit 1 on FAIL")
    parser.add_argument("--only", default="", metavar="TEXT", help="only files whose name contains TEXT")
    options = parser.parse_args()
    if not sys.platform.startswith("linux"):
        parser.error("peaks are read from Linux' /proc")
    _warm()
    failed, slowest, largest = [], 0.0, 0.0
    chosen = [case for case in cases() if options.only in case.name]
    for case in chosen:
        with tempfile.TemporaryDirectory() as folder:
            path = case.make(Path(folder))
            outcome = _in_a_fork(path)
            wrong = verdict(case, path, outcome)
            message = (outcome.refusals or [outcome.fault or "not refused"])[0].replace(str(path), path.name)
        print(f"{outcome.seconds:6.3f} s {outcome.mb:6.1f} MB  {case.name}: {message[:160]}")
        slowest, largest = max(slowest, outcome.seconds), max(largest, outcome.mb)
        if wrong is not None:
            failed.append(f"{case.name}: {wrong}")
            print(f"{'':18}FAIL: {wrong}")
    print(f"{len(chosen)} files, at most {slowest:.3f} s and {largest:.1f} MB")
    if not options.check:
        return 0
    passed = not failed
    print(f"{'PASS' if passed else 'FAIL'}: {len(chosen) - len(failed)} of {len(chosen)} are refused as they should be")
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
