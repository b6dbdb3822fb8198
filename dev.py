#!/usr/bin/env python3
"""Set up, check, test and serve this workspace with nothing but Python and git.

    python3 dev.py serve [ARGS]     set everything up, then run poot-serve with ARGS
    python3 dev.py test [ARGS]      set everything up, then run pytest with ARGS, or all tests
    python3 dev.py check            formatting, lint, types, import contracts, lock
    python3 dev.py fmt [PATH ...]   format and fix what can be fixed
    python3 dev.py bench NAME ...   run benchmarks/NAME.py with the rest as its arguments
    python3 dev.py lowest [ARGS]    test the last commit on the oldest releases that the packages accept
    python3 dev.py lock             rewrite the tested set; --upgrade [NAME ...] takes newer releases
    python3 dev.py sync [ARGS]      make .venv what the workspace needs

Exit codes are those of the command that ran. uv is taken from PATH when it is recent enough, else it is
installed once into .tools/uv.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent
WINDOWS = os.name == "nt"
BIN = "Scripts" if WINDOWS else "bin"
TOOLS = ROOT / ".tools"
PYPROJECT = ROOT / "pyproject.toml"
REQUIREMENTS = ROOT / "requirements.lock"

OLDEST_PYTHON = (3, 11)
PYTHON_BELOW = (3, 14)

BLOCK_START = "# >>> the tested set, written by `make lock`\n"
BLOCK_END = "# <<< the tested set\n"
EXPORT = ("export", "--frozen", "--quiet", "--all-packages", "--no-emit-workspace", "--no-header", "--no-annotate")
PIN = re.compile(r"^(?P<name>[a-z0-9-]+)==(?P<version>[^ ;\\]+)(?: ; (?P<marker>[^\\]+?))?(?: \\)?$")


class DevError(Exception):
    """Something the person at the keyboard has to change; the message says what."""


def check_python(version: tuple[int, int], executable: str) -> None:
    """Refuse an interpreter that the packages do not support."""
    if not OLDEST_PYTHON <= version < PYTHON_BELOW:
        raise DevError(
            f"poot needs Python {OLDEST_PYTHON[0]}.{OLDEST_PYTHON[1]} to {PYTHON_BELOW[0]}.{PYTHON_BELOW[1] - 1}, and "
            f"{executable} is {version[0]}.{version[1]}. Run this file with another one: python3.12 dev.py ..."
        )


def required_uv() -> tuple[str, tuple[int, ...]]:
    """The specifier in `tool.uv.required-version` and the release it starts at."""
    found = re.search(r'^required-version = "(>=(\d+(?:\.\d+)*))"$', PYPROJECT.read_text("utf-8"), re.M)
    if found is None:
        raise DevError('pyproject.toml: [tool.uv] must say required-version = ">=X.Y"')
    return found[1], tuple(map(int, found[2].split(".")))


def uv_version(command: str) -> tuple[int, ...] | None:
    """What `command --version` says, or None when it does not run or is not uv."""
    try:
        said = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.match(r"uv (\d+(?:\.\d+)*)", said.stdout)
    return tuple(map(int, found[1].split("."))) if said.returncode == 0 and found else None


def find_uv() -> str:
    """A uv that is recent enough: from PATH, from .tools/uv, or newly installed there."""
    specifier, oldest = required_uv()
    private = str(TOOLS / "uv" / BIN / ("uv.exe" if WINDOWS else "uv"))
    for command in (shutil.which("uv"), private):
        if command and (uv_version(command) or ()) >= oldest:
            return command
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        raise DevError(
            f"no uv{specifier} on PATH, and this Python has no venv module to install one with. "
            "Debian and Ubuntu: apt-get install python3-venv. Elsewhere: install uv, then run this again."
        )
    print(f"dev.py: installing uv{specifier} into {TOOLS / 'uv'}", flush=True)
    make_venv = (base_python(), "-m", "venv", "--clear", str(TOOLS / "uv"))
    install = (str(TOOLS / "uv" / BIN / "python"), "-m", "pip", "install", "--quiet", f"uv{specifier}")
    if run(*make_venv) != 0 or run(*install) != 0:
        raise DevError(
            f"installing uv failed, as said above; remove {TOOLS / 'uv'} to start anew, or install uv yourself"
        )
    return private


def base_python() -> str:
    """The running interpreter, or the one its virtual environment was made from."""
    return str(getattr(sys, "_base_executable", None) or sys.executable)


def uv(*arguments: str, root: Path = ROOT, capture: bool = False) -> str:
    """Run uv in `root`, on its .venv whichever one is active in the shell; return what it printed if `capture`.

    Its failure ends this program with its exit code.
    """
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    environment["UV_PROJECT_ENVIRONMENT"] = str(root / ".venv")
    stdout = subprocess.PIPE if capture else None
    done = subprocess.run([find_uv(), *arguments], cwd=root, env=environment, stdout=stdout, check=False)
    if done.returncode != 0:
        raise SystemExit(done.returncode)
    return done.stdout.decode("utf-8") if capture else ""


def script(name: str, root: Path = ROOT) -> str:
    """A console script of the .venv in `root`."""
    return str(root / ".venv" / BIN / (f"{name}.exe" if WINDOWS else name))


def run(*command: str) -> int:
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def become(*command: str) -> int:
    """Replace this process by `command`, so that signals and exit codes are its own."""
    sys.stdout.flush()
    if WINDOWS:
        return run(*command)
    os.execv(command[0], command)


def sync(arguments: list[str]) -> int:
    uv("sync", "--all-packages", "--python", base_python(), *arguments)
    return 0


def serve(arguments: list[str]) -> int:
    # --inexact: what `sync` installed for checks and tests stays.
    sync(["--quiet", "--no-default-groups", "--group", "demo", "--inexact"])
    return become(script("poot-serve"), *arguments)


def test(arguments: list[str]) -> int:
    sync(["--quiet"])
    os.chdir(ROOT)
    return become(script("python"), *(("-m", "pytest", *arguments) if arguments else ("tests/whole.py",)))


def lowest(arguments: list[str]) -> int:
    """Test the last commit without its tested set, on the oldest releases that the packages accept."""
    copy = TOOLS / "lowest"
    shutil.rmtree(copy, ignore_errors=True)
    if run("git", "clone", "--quiet", str(ROOT), str(copy)) != 0:
        raise DevError("lowest works on a clone of the last commit; commit first")
    (copy / "pyproject.toml").write_text(write_block((copy / "pyproject.toml").read_text("utf-8"), []), "utf-8")
    uv("sync", "--all-packages", "--python", base_python(), "--resolution", "lowest-direct", root=copy)
    os.chdir(copy)
    return become(script("python", copy), "-m", "pytest", "--ignore=tests/architecture", *arguments)


def bench(arguments: list[str]) -> int:
    known = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py"))
    if not arguments or arguments[0] not in known:
        raise DevError(f"bench takes the name of a benchmark: {', '.join(known)}")
    sync(["--quiet"])
    return become(script("python"), str(ROOT / "benchmarks" / f"{arguments[0]}.py"), *arguments[1:])


def fmt(arguments: list[str]) -> int:
    sync(["--quiet"])
    where = arguments or ["."]
    left = run(script("ruff"), "check", "--fix", *where)
    return run(script("ruff"), "format", *where) or left


def check(arguments: list[str]) -> int:
    """Run every check, also after one has failed, and say at the end which did."""
    if arguments:
        raise DevError("check takes no arguments")
    sync(["--quiet"])
    steps = {
        "format": [script("ruff"), "format", "--check", "--output-format", "concise", "--quiet", "."],
        "lint": [script("ruff"), "check", "--output-format", "concise", "--quiet", "."],
        "types": [script("mypy"), "--no-error-summary"],
        "imports": [script("lint-imports"), "--no-logo"],
    }
    failed = []
    for name, command in steps.items():
        started = time.monotonic()
        code = run(*command)
        print(f"dev.py: {name}: {'ok' if code == 0 else 'FAILED'} ({time.monotonic() - started:.1f} s)", flush=True)
        failed += [name] if code else []
    differences = lock_differences(PYPROJECT.read_text("utf-8"), REQUIREMENTS.read_text("utf-8"))
    print(f"dev.py: lock: {'FAILED' if differences else 'ok'}", *differences, sep="\n  " if differences else "")
    failed += ["lock"] if differences else []
    if failed:
        print(f"dev.py: failed: {', '.join(failed)}", flush=True)
    return 1 if failed else 0


def read_block(pyproject: str) -> list[str]:
    """The requirements between the two marker comments of the root pyproject.toml."""
    _, start, rest = pyproject.partition(BLOCK_START)
    block, end, _ = rest.partition(BLOCK_END)
    if not start or not end:
        raise DevError("pyproject.toml: the two comments around constraint-dependencies are gone; restore them")
    return re.findall(r'^    "(.*)",$', block, re.M)


def write_block(pyproject: str, pins: list[str]) -> str:
    """`pyproject` with `pins` as its constraint-dependencies."""
    read_block(pyproject)
    before, _, rest = pyproject.partition(BLOCK_START)
    after = rest.partition(BLOCK_END)[2]
    lines = "".join(f'    "{pin}",\n' for pin in pins)
    return f"{before}{BLOCK_START}constraint-dependencies = [\n{lines}]\n{BLOCK_END}{after}"


def pins_of(requirements: str) -> list[str]:
    """One `name==version` a package; the marker is kept only where two releases of a package need it.

    A constraint asks for nothing, so where a package is used at all it needs no marker.
    """
    found = []
    for line in requirements.splitlines():
        if not line or line.startswith(("    --hash=", "#")):
            continue
        match = PIN.match(line)
        if match is None:
            raise DevError(f"requirements.lock: not a pinned requirement: {line[:120]!r}; run: make lock")
        found.append((match["name"], match["version"], match["marker"]))
    names = [name for name, _, _ in found]
    return [
        f"{name}=={version} ; {marker}" if marker and names.count(name) > 1 else f"{name}=={version}"
        for name, version, marker in found
    ]


def lock_differences(pyproject: str, requirements: str) -> list[str]:
    """How constraint-dependencies and requirements.lock disagree; nothing when they agree."""
    constraints, pins = read_block(pyproject), pins_of(requirements)
    only_here = [f"only in pyproject.toml: {pin}" for pin in constraints if pin not in pins]
    only_there = [f"only in requirements.lock: {pin}" for pin in pins if pin not in constraints]
    addresses = ["requirements.lock holds an address"] if "://" in requirements else []
    return only_here + only_there + addresses


def lock(arguments: list[str]) -> int:
    """Resolve, then write the result as constraints (for uv) and as hashed requirements (for any installer)."""
    if arguments and arguments[0] != "--upgrade":
        raise DevError("lock takes nothing, or --upgrade [NAME ...]")
    upgrades = [f"--upgrade-package={name}" for name in arguments[1:]] or arguments
    before = PYPROJECT.read_text("utf-8")
    kept = [] if upgrades == ["--upgrade"] else read_block(before)
    kept = [pin for pin in kept if pin.partition("==")[0] not in arguments[1:]]
    try:
        PYPROJECT.write_text(write_block(before, kept), "utf-8")
        uv("lock", "--python", base_python(), *upgrades)
        pins = pins_of(uv(*EXPORT, "--no-hashes", capture=True))
        PYPROJECT.write_text(write_block(before, pins), "utf-8")
        # Again, since the constraints are part of what uv locks: they must lead to the same set.
        uv("lock", "--quiet", "--python", base_python())
        requirements = uv(*EXPORT, capture=True)
        differences = lock_differences(PYPROJECT.read_text("utf-8"), requirements)
        if differences:
            raise DevError("the constraints do not reproduce what was locked:\n  " + "\n  ".join(differences))
    except BaseException:
        PYPROJECT.write_text(before, "utf-8")
        raise
    REQUIREMENTS.write_text(requirements, "utf-8")
    print(f"dev.py: {len(pins)} releases in pyproject.toml and requirements.lock")
    return 0


COMMANDS = {command.__name__: command for command in (serve, test, check, fmt, bench, lowest, lock, sync)}


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in {"-h", "--help", "help"}:
        print(__doc__)
        return 0 if arguments else 2
    try:
        check_python(sys.version_info[:2], sys.executable)
        command = COMMANDS.get(arguments[0])
        if command is None:
            raise DevError(f"no command {arguments[0]!r}; there are: {', '.join(COMMANDS)}")
        return command(arguments[1:])
    except DevError as problem:
        print(f"dev.py: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
