"""All that must hold on an NVIDIA GPU, in one call: named cases, each a script of this repository with a time cap.

    python benchmarks/gpu.py --smollm2 FILE --gemma FILE            run every case, the cheap ones first
    python benchmarks/gpu.py decode-8b parity-gemma --gemma FILE    run these
    python benchmarks/gpu.py --skip memcheck --budget 570 --log DIR

Works on a plain checkout: the packages need not be installed, only what they import. Every case is a process group of
its own, ended whole at its cap or when the budget of all cases is spent. Its output goes to DIR/CASE.log, and its last
lines here. A case is NOT HERE when its model file, script, program or Python module is missing, or when the machine
refuses its tool; NOT RUN when the budget was spent before it.

Exit code: 0 all passed, 1 one failed or ran out of time, 2 none failed but not all were run, as where no device opens.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TAIL = 14  # lines of each case that are shown
LEAST_SECONDS = 10.0  # what a case must have left of the budget to be begun


@dataclass(frozen=True, slots=True)
class Case:
    """A command line. `{smollm2}` and `{gemma}` in it are the model files; `seconds` is its cap.

    `script` is a path relative to the root, or `module:function`. `under` is a program that runs Python; `refused` in
    the output means that it cannot do so on this machine.
    """

    name: str
    seconds: float
    script: str
    arguments: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    under: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    case: str
    verdict: str
    seconds: float
    why: str = ""


def bench(name: str, seconds: float, script: str, *arguments: str, modules: tuple[str, ...] = ()) -> Case:
    return Case(name, seconds, f"benchmarks/{script}.py", (*arguments, "--check"), modules)


REFERENCE = ("gguf", "transformers")
CASES = (
    Case("conformance", 240, "poot_executor.cli:main", ("conformance", "--backend", "ptx")),
    bench("sampling", 120, "sampling"),
    bench("steady-tiny", 120, "steady", "--shape", "tiny"),
    bench("steady", 180, "steady", "--shape", "135m"),
    bench("steady-full", 240, "steady", "--shape", "135m", "--rows", "256", "--full"),
    bench("host", 120, "host_gpu"),
    bench("batch-equal", 150, "batch_equal", "--model", "{smollm2}"),
    bench("parity-smollm2", 240, "parity", "--backend", "ptx", "--margin", "0.3", "--model", "{smollm2}",
          modules=REFERENCE),
    bench("parity-smollm2-q8", 240, "parity", "--backend", "ptx", "--margin", "0.3", "--model", "{smollm2}",
          "--reencode", "Q8_0", modules=REFERENCE),
    bench("parity-gemma", 300, "parity", "--backend", "ptx", "--margin", "0.3", "--model", "{gemma}",
          modules=REFERENCE),
    bench("decode-135m", 150, "decode", "--shape", "135m"),
    bench("decode-8b", 300, "decode", "--shape", "8b"),
    bench("packed-products", 180, "packed_products", "--rows", "1,8,32,128"),
    bench("gated-products", 120, "gated_products"),
    bench("prompt-attention", 120, "prompt_attention"),
    bench("prompt-attention-64", 120, "prompt_attention", "--width", "64"),
    bench("rows-attention", 120, "rows_attention"),
    bench("decode-8b-q4km", 240, "decode", "--shape", "8b-q4km"),
    bench("context-8192", 240, "decode", "--shape", "8b", "--context", "8192"),
    bench("context-32768", 240, "decode", "--shape", "8b", "--context", "32768"),
    bench("prefill", 240, "prefill"),
    bench("prefill-q4km", 240, "prefill", "--shape", "8b-q4km"),
    bench("throughput", 240, "throughput", "--only", "all"),
    bench("stall", 180, "throughput", "--only", "stall"),
    bench("startup", 300, "startup"),
    # Of the checkpoint that `startup` has written.
    bench("serve", 420, "serve", "--clients", "64,256", "--mixed", modules=("granian", "starlette")),
    Case(
        "memcheck", 480, "benchmarks/memcheck.py",
        under=("compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9"),
        # Every tensor its own allocation: one that torch cuts from a larger one has no bounds to overstep.
        environment=(("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"),),
        refused="Device not supported",
    ),
)  # fmt: skip


def missing(case: Case, models: dict[str, Path | None]) -> str | None:
    """Why a case cannot run here."""
    for name, path in models.items():
        if "{" + name + "}" in case.arguments and (path is None or not path.exists()):
            return f"--{name} is not given" if path is None else f"there is no {path}"
    if ":" not in case.script and not (ROOT / case.script).exists():
        return f"there is no {case.script}"
    if case.under and shutil.which(case.under[0]) is None:
        return f"there is no {case.under[0]}"
    absent = [module for module in case.modules if importlib.util.find_spec(module) is None]
    return f"no module {absent[0]}" if absent else None


def command(case: Case, models: dict[str, Path | None]) -> list[str]:
    module, _, function = case.script.partition(":")
    target = ["-c", f"from {module} import {function}; {function}()"] if function else [str(ROOT / case.script)]
    filled = [str(models.get(argument[1:-1], argument)) if argument[:1] == "{" else argument
              for argument in case.arguments]  # fmt: skip
    return [*case.under, sys.executable, "-u", *target, *filled]


def environment(case: Case) -> dict[str, str]:
    paths = [str(path) for path in sorted(ROOT.glob("packages/*/src"))] + [str(ROOT / "benchmarks")]
    kept = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([*paths, *([kept] if kept else [])])
    return {**os.environ, "PYTHONPATH": path, **dict(case.environment)}


def run(case: Case, models: dict[str, Path | None], cap: float, log: Path) -> Outcome:
    """Run one case for at most `cap` seconds; its output goes to the file `log`."""
    why = missing(case, models)
    if why is not None:
        return Outcome(case.name, "NOT HERE", 0.0, why)
    began = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command(case, models), stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env=environment(case), cwd=ROOT, start_new_session=True,
        )  # fmt: skip
        try:
            code: int | None = process.wait(timeout=cap)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            # Also what the case has left behind: a later case must have the device to itself.
            _end(process)
    seconds, text = time.monotonic() - began, log.read_text(encoding="utf-8", errors="replace")
    lines = text.splitlines()
    print("\n".join(f"    {line[:160]}" for line in lines[-TAIL:]), flush=True)
    if code is None:
        return Outcome(case.name, "TIMEOUT", seconds, f"ended after {cap:.0f} s")
    if code == 0:
        return Outcome(case.name, "PASS", seconds)
    if case.refused is not None and case.refused in text:
        return Outcome(case.name, "NOT HERE", seconds, case.refused)
    failed = sum("FAIL" in line for line in lines)
    return Outcome(case.name, "FAIL", seconds, f"exit code {code}" + (f"; {failed} lines say so" if failed else ""))


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def no_device() -> str | None:
    """Why no case can run here."""
    case = Case("", 0, "here:require_gpu")
    found = subprocess.run(
        command(case, {}), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment(case), cwd=ROOT, text=True,
        errors="replace", check=False,
    )  # fmt: skip
    return (found.stderr.strip().splitlines() or [f"exit code {found.returncode}"])[-1] if found.returncode else None


def run_all(chosen: Sequence[Case], arguments: argparse.Namespace, log: Path) -> list[Outcome]:
    """The chosen cases in their order, within the budget."""
    models = {"smollm2": arguments.smollm2, "gemma": arguments.gemma}
    began, outcomes = time.monotonic(), []
    for case in chosen:
        left = arguments.budget - (time.monotonic() - began)
        if left < LEAST_SECONDS:
            outcomes.append(Outcome(case.name, "NOT RUN", 0.0, "the budget was spent"))
            continue
        print(f"{case.name} (at most {min(case.seconds, left):.0f} s)", flush=True)
        outcomes.append(run(case, models, min(case.seconds, left), log / f"{case.name}.log"))
        print(f"{outcomes[-1].verdict} {case.name} {outcomes[-1].seconds:.1f} s {outcomes[-1].why}", flush=True)
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [case.name for case in CASES]
    parser.add_argument("case", nargs="*", help=f"of {', '.join(names)}; default all")
    parser.add_argument("--skip", action="append", default=[], metavar="CASE")
    parser.add_argument("--budget", type=float, default=float("inf"), metavar="SECONDS", help="for all cases together")
    parser.add_argument("--log", type=Path, default=None, metavar="DIR", help="default: a new temporary directory")
    parser.add_argument("--smollm2", type=Path, default=None, metavar="FILE")
    parser.add_argument("--gemma", type=Path, default=None, metavar="FILE")
    parser.add_argument("--list", action="store_true", help="print the cases and their caps")
    arguments = parser.parse_args()
    unknown = sorted({*arguments.case, *arguments.skip} - set(names))
    if unknown:
        parser.error(f"there is no case {unknown[0]}; there are {', '.join(names)}")
    chosen = [case for case in CASES if case.name in (arguments.case or names) and case.name not in arguments.skip]
    if arguments.list:
        print("\n".join(f"{case.name:16} {case.seconds:5.0f} s  {case.script}" for case in chosen))
        return 0
    why = no_device()
    if why is not None:
        print(why, file=sys.stderr)
        return 2
    log = arguments.log or Path(tempfile.mkdtemp(prefix="poot-gpu-"))
    log.mkdir(parents=True, exist_ok=True)
    outcomes = run_all(chosen, arguments, log)
    print(f"\n{'case':16} {'':8} seconds")
    for outcome in outcomes:
        print(f"{outcome.case:16} {outcome.verdict:8} {outcome.seconds:7.1f}  {outcome.why}")
    counts = Counter(outcome.verdict for outcome in outcomes)
    print(", ".join(f"{number} {name}" for name, number in counts.items()) + f"; logs in {log}")
    if counts["FAIL"] or counts["TIMEOUT"]:
        return 1
    return 0 if counts["PASS"] == len(outcomes) else 2


if __name__ == "__main__":
    raise SystemExit(main())
