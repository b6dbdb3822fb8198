"""The console script: what this machine offers, and whether a backend's kernels are right."""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import sys
from collections import Counter
from typing import TYPE_CHECKING

from poot_executor import __version__
from poot_executor.errors import BackendUnavailableError

if TYPE_CHECKING:
    from poot_executor.devices import Device
    from poot_executor.testing import Case


def main() -> None:
    """Run `poot-executor` and end the process with its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of devices may not fit the terminal's encoding
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """The whole program but its exit. 0: all is well; 1: no device, or a kernel that fails; 2: a wrong command line."""
    parsed = _parser().parse_args(arguments)
    if parsed.command == "doctor":
        return _doctor()
    return _conformance(parsed.backend, parsed.only)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="poot-executor", description=__doc__)
    parser.add_argument("--version", action="version", version=f"poot-executor {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("doctor", help="list the backends: their devices and memory, or why they do not open")
    conformance = commands.add_parser("conformance", help="run every op's examples against its definition")
    conformance.add_argument("--backend", default="auto", help="a backend that doctor lists (default: auto)")
    conformance.add_argument("--only", default="", metavar="TEXT", help="only cases whose name contains TEXT")
    return parser


def _doctor() -> int:
    python = ".".join(map(str, sys.version_info[:3]))
    print(f"poot-executor {__version__}, python {python}, torch {_installed('torch')}, triton {_installed('triton')}")
    from poot_executor.devices import probe

    computes = False
    for found in probe():
        if found.refusal is not None:
            print(f"  {found.backend:8} no: {found.refusal}")
            continue
        for device in found.devices:
            print(f"  {found.backend:8} yes: {device}")
        computes |= found.backend != "null"
    if not computes:
        print("no backend computes here", file=sys.stderr)
        return 1
    from poot_executor.backends.cpu.memory import available, reserve

    free = available()
    print(f"host memory: {_gib(free)} free, of which {_gib(reserve(free))} are kept in reserve")
    return 0


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB"


def _conformance(backend: str, only: str) -> int:
    from poot_executor.devices import open_device

    try:
        device = open_device(backend)
    except BackendUnavailableError as error:
        print(f"poot-executor: {error}", file=sys.stderr)
        return 1
    from poot_executor.testing import cases

    chosen = [case for case in cases() if only in case.id]
    if not chosen:
        print(f"poot-executor: no case has {only!r} in its name", file=sys.stderr)
        return 2
    counts = Counter(_check(case, device) for case in chosen)
    print(
        f"{device.backend} ({device.name}): "
        + ", ".join(f"{counts[word]} {word}" for word in ("PASS", "FAIL", "refused"))
    )
    return 1 if counts["FAIL"] else 0


def _check(case: Case, device: Device) -> str:
    """Run and print one case. A kernel that raises fails, with its message."""
    from poot_executor.testing import run_case

    try:
        outcome = run_case(case, device)
    except Exception as error:
        word, why = "FAIL", f"{type(error).__name__}: {error}"
    else:
        word = "refused" if outcome.refusal else "PASS" if outcome.passed else "FAIL"
        why = outcome.refusal or ("" if outcome.passed else f"beyond the tolerance by {outcome.error:.3g}")
    print(f"{word:8}{case.id}" + (f": {why}" if why else ""), flush=True)
    return word
