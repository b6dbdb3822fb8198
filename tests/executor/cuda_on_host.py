"""A CUDA C++ kernel compiled by g++ and run on host memory: `HostKernel(path, name, macros).launch(...)`.

What the kernel may use, and what is checked while it runs, stands in cuda_on_host.h, which takes the place of the
kernel's "intrinsics.cuh". Libraries are kept between runs, named by everything they are made from.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path

import torch

from poot_executor.backends.cuda.boxes import Boxes
from poot_executor.devices.kept import keep, kept
from poot_executor.devices.private_folder import private_folder

EMULATION = Path(__file__).with_name("cuda_on_host.h")
INTRINSICS = "intrinsics.cuh"
CHECKS = (
    "-fsanitize=kernel-address,alignment,bounds,null,shift-exponent",
    "--param=asan-instrumentation-with-call-threshold=0",
)
FLAGS = (
    *("-O2", "-g1", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique", "-fno-strict-aliasing", "-w"),
    *("-ffp-contract=off", "-fcf-protection=none", "-fno-stack-protector", "-fno-exceptions"),
    # So that a call's place is the kernel's line.
    *("-fno-optimize-sibling-calls", "-fno-crossjumping", "-fno-tree-tail-merge"),
    *(*CHECKS, "--param=asan-stack=0", "--param=asan-globals=0"),
)
# Macros are defined behind the header, which is compiled once for all of them.
MAIN = '#include "cuda_on_host.h"\n{macros}#include "{source}"\nCUDA_ON_HOST_ENTRY({kernel})\n'
CODE = re.compile(r" \[code\+(0x[0-9a-f]+)\]")
_SECONDS = 240

Argument = torch.Tensor | Boxes | int | float | None


class HostCompileError(Exception):
    """The kernel does not compile; the message is the compiler's."""


class KernelFault(Exception):
    """A launch that went wrong: a deadlock, an access outside of the operands, a misaligned address."""


@cache
def compiler() -> str | None:
    """The g++ to compile with, or None where there is none: then tests of kernels are skipped."""
    return shutil.which("g++")


class HostKernel:
    """A kernel for the host: `source` is a .cu file, with the .cuh files beside it, or a text of its own.

    `macros` are defined for it, as numbers. Raises HostCompileError.
    """

    def __init__(self, source: str | Path, kernel: str, macros: Mapping[str, int], flags: Sequence[str] = ()) -> None:
        self.path = compiled(source, kernel, macros, flags)
        library = ctypes.CDLL(str(self.path))
        library.cuda_on_host_parameters.restype = ctypes.c_char_p
        self.parameters: str = library.cuda_on_host_parameters().decode()
        self._run = library.cuda_on_host_run

    def launch(
        self,
        grid: tuple[int, int, int],
        threads: int,
        shared: int,
        arguments: Sequence[Argument],
        reversed: bool = False,
        *,
        cluster: int = 1,
        turns: int = 0,
        early: Collection[int] | None = None,
    ) -> None:
        """Run every block; with `reversed` blocks, warps and lanes take turns from the last to the first.

        With `turns`, the seed of random numbers, a block's warps take them as these say, and are interrupted.

        A tensor is given as the address of its first element, and the kernel may use the bytes of its elements alone;
        Boxes are a BoxMap, None is a null pointer, an int an int32, a float a float32. `cluster`: so many blocks, next
        to each other in x, run at the same time. `early`: the arguments that a thread may use before it has waited for
        the kernel before (None: all of them). Raises KernelFault, and TypeError or ValueError for arguments that are
        not the kernel's.
        """
        if cluster < 1 or grid[0] % cluster:
            raise ValueError(f"clusters of {cluster} blocks in a grid of {grid[0]}")
        if len(arguments) != len(self.parameters):
            raise ValueError(f"{len(arguments)} arguments for {len(self.parameters)} parameters")
        values = [_value(at, *pair) for at, pair in enumerate(zip(self.parameters, arguments, strict=True))]
        count = len(values)
        spans = [_span(value) for value in arguments]
        message = ctypes.create_string_buffer(600)
        failed = self._run(
            *map(ctypes.c_uint, (*grid, threads, shared)),
            (ctypes.c_void_p * count)(*(ctypes.addressof(value) for value in values)),
            (ctypes.c_void_p * count)(*(start for start, _ in spans)),
            (ctypes.c_size_t * count)(*(size for _, size in spans)),
            ctypes.c_uint(0xFFFFFFFF if early is None else sum(1 << at for at in early)),
            int(reversed),
            cluster,
            turns,
            message,
            len(message),
        )
        if failed:
            raise KernelFault(CODE.sub(self._line, message.value.decode(errors="replace")))

    def _line(self, found: re.Match[str]) -> str:
        """The lines of the source that an address of the code is of, innermost first."""
        command = ["addr2line", "-s", "-i", "-e", str(self.path), hex(int(found[1], 16) - 1)]
        try:
            said = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False).stdout
        except OSError:
            return found[0]
        lines = [line.partition(" (")[0] for line in said.split("\n") if line and EMULATION.name not in line]
        return f" [{', '.join(lines)}]" if lines else ""


class _BoxMap(ctypes.Structure):
    """A BoxMap as cuda_on_host.h has it."""

    _fields_ = (
        ("base", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("rows", "columns", "pitch", "box_rows", "box_pieces", "halves")),
        ("unused", ctypes.c_int64 * 9),
    )


_Value = ctypes.c_void_p | ctypes.c_int32 | ctypes.c_float | _BoxMap


def _span(argument: Argument) -> tuple[int | None, int]:
    """Address and bytes from a tensor's first element to its last one; of what is no tensor, nothing."""
    tensor = argument.tensor if isinstance(argument, Boxes) else argument
    if not isinstance(tensor, torch.Tensor):
        return None, 0
    if not tensor.numel():
        return tensor.data_ptr() or None, 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), (last + 1) * tensor.element_size()


def _value(at: int, letter: str, argument: Argument) -> _Value:
    """An argument as the parameter has it: p a pointer, m a map of boxes, i an integer of 32 bits, f a float."""
    match letter, argument:
        case "p", None:
            return ctypes.c_void_p(None)
        case "p", torch.Tensor() if argument.device.type == "cpu":
            return ctypes.c_void_p(argument.data_ptr())
        case "m", Boxes(tensor=tensor, rows=rows, pieces=pieces, halves=halves) if tensor.device.type == "cpu":
            return _BoxMap(tensor.data_ptr(), *tensor.shape, tensor.stride(0) * 2, rows, pieces or 0, halves)
        case "i", int() if not isinstance(argument, bool):
            if not -(2**31) <= argument < 2**31:
                raise ValueError(f"argument {at}: {argument} is no int32")
            return ctypes.c_int32(argument)
        case "f", float():
            return ctypes.c_float(argument)
    raise TypeError(f"argument {at}: {type(argument).__name__} for a parameter of kind {letter!r}")


def compiled(source: str | Path, kernel: str, macros: Mapping[str, int], flags: Sequence[str] = ()) -> Path:
    """The shared library of a kernel, compiled unless it is there already. Raises HostCompileError."""
    gxx = compiler()
    if gxx is None:
        raise HostCompileError("no g++ on the path")
    files = {EMULATION.name: EMULATION.read_text("utf-8"), INTRINSICS: f'#include "{EMULATION.name}"\n'}
    name = source.name if isinstance(source, Path) else "kernel.cu"
    if isinstance(source, Path):
        beside = [path for path in sorted(source.parent.glob("*.cuh")) if path.name != INTRINSICS]
        files |= {path.name: path.read_text("utf-8") for path in (*beside, source)}
    else:
        files[name] = source
    defined = "".join(f"#define {macro} {value}\n" for macro, value in macros.items())
    files["main.cpp"] = MAIN.format(macros=defined, source=name, kernel=kernel)
    command = [gxx, *FLAGS, *flags]
    target = _place(files, command, "so")
    if kept(target) is None:
        # Linked apart: the checks are the emulation's own, not those of a library that -fsanitize would link.
        steps = ([*command, "-c", "main.cpp", "-o", "main.o"], [gxx, "-shared", "main.o", "-o", target.name])
        _make(target, files, steps, header=_header(*command))
    return target


@cache
def _header(*command: str) -> Path:
    """The emulation's header compiled: reading it as text takes a third of a kernel's time. Raises HostCompileError."""
    files = {EMULATION.name: EMULATION.read_text("utf-8")}
    target = _place(files, command, "gch")
    if kept(target) is None:
        _make(target, files, [[*command, "-x", "c++-header", EMULATION.name, "-o", target.name]])
    return target


def _place(files: Mapping[str, str], command: Sequence[str], suffix: str) -> Path:
    key = hashlib.sha256(repr((files, command, _version(command[0]))).encode()).hexdigest()[:32]
    return private_folder("cuda-on-host") / f"{key}.{suffix}"


def _make(
    target: Path, files: Mapping[str, str], steps: Sequence[Sequence[str]], *, header: Path | None = None
) -> None:
    """Compile copies of the files in a folder of their own: an include is looked for beside its includer first."""
    with tempfile.TemporaryDirectory(prefix="poot-", dir=target.parent) as made:
        folder = Path(made)
        for name, text in files.items():
            (folder / name).write_text(text, "utf-8")
        if header is not None:
            (folder / f"{EMULATION.name}.gch").symlink_to(header)
        for step in steps:
            try:
                run = subprocess.run(step, cwd=folder, capture_output=True, timeout=_SECONDS, check=False)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise HostCompileError(f"g++ did not run: {error}") from error
            if run.returncode:
                raise HostCompileError(run.stderr.decode(errors="replace").strip()[:4000])
        keep(target, (folder / target.name).read_bytes())


@cache
def _version(gxx: str) -> str:
    return subprocess.run([gxx, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
