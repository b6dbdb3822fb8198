"""Products of bfloat16 by algorithms of cuBLASLt that are named, where torch takes the library's first guess.

A result (M, N) in rows, x (M, K) times the transpose of a weight (N, K), is to the library, whose matrices are in
columns, the result (N, M) of A (K, N), transposed, and B (K, M).
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch

from poot_executor.backends.cuda.blaslt_library import (
    Algorithm,
    Found,
    ProductError,
    handle,
    library,
    require,
    require_launched,
)
from poot_executor.backends.cuda.blaslt_names import configure, name_of, said_by

_WORKSPACE_BYTES = 2**20

# Numbers of cublasLt.h, cublas_api.h and library_types.h.
_COMPUTE_FLOAT, _OP_TRANSPOSED, _SUCCESS = 68, 1, 0  # CUBLAS_COMPUTE_32F, CUBLAS_OP_T
_KINDS = {torch.bfloat16: 14, torch.float32: 0}  # CUDA_R_...
_FLOAT, _BFLOAT16 = _KINDS[torch.float32], _KINDS[torch.bfloat16]
_TRANSPOSE_A = 3  # CUBLASLT_MATMUL_DESC_...
_BATCH_COUNT, _BATCH_OFFSET = 5, 6  # CUBLASLT_MATRIX_LAYOUT_...
_WORKSPACE, _SUMS, _ALIGNMENT_A, _ALIGNMENT_B, _ALIGNMENT_C, _ALIGNMENT_D = 1, 3, 5, 6, 7, 8  # CUBLASLT_MATMUL_PREF_...
# Sums of K's parts: in float32 in the workspace, or in the result if it is float32 (CUBLASLT_REDUCTION_SCHEME_...).
_SUMS_APART, _SUMS_IN_PLACE = 2, 1
_GUESSES = 16
_LEAST_ALIGNMENT, _MOST_ALIGNMENT = 16, 256
# What the library's guesses leave out and was the fastest, or near to it, on an H200 (sweeps over tiles and clusters of
# the algorithm, shapes of an 8B decoder): tile, cluster, swizzle, custom.
_HOPPER, _HOPPER_ID, _HOPPER_STAGES = (9, 0), 66, 35
_HOPPER_WAYS = (
    (189, 5, 0, 2), (189, 5, 1, 2), (165, 5, 1, 8), (165, 5, 0, 0), (171, 4, 0, 8), (124, 4, 0, 8), (124, 2, 0, 0),
    (20, 3, 0, 8), (20, 3, 0, 1), (183, 8, 0, 8), (151, 2, 0, 8), (151, 3, 0, 8), (184, 2, 0, 8), (145, 3, 0, 8),
    (28, 5, 1, 6), (15, 5, 0, 8), (30, 5, 1, 2), (18, 2, 0, 0), (17, 2, 0, 0), (27, 2, 0, 0), (166, 2, 0, 0),
    (28, 2, 0, 0), (193, 2, 0, 0), (134, 5, 0, 8),
)  # fmt: skip
_KEPT_PROBLEMS = 64  # a step's, with some to spare: its layers have the same ones

# Descriptors, each with what destroys it.
_Made = list[tuple[Callable[[ctypes.c_void_p], int], ctypes.c_void_p]]


def workspace() -> torch.Tensor:
    """Room for products on torch's current device. Raises ProductError where there is no such library."""
    handle(torch.cuda.current_device())
    return torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")


def products(
    x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, workspace: torch.Tensor, only: str | None = None
) -> dict[str, Callable[[], None]]:
    """The algorithms that the library has for out = x @ weight, by name, each as the call that launches it; that of
    the name `only`, if it has it.

    x (rows, K) or (batch, rows, K), weight (K, N) or (batch, K, N), K being next to each other in both, bfloat16;
    out (rows, N) or (batch, rows, N) in rows, bfloat16 or float32. None for all else, and for what the library
    refuses. A call goes to torch's current stream, as often as one likes, also under capture and from any thread, and
    keeps what it reads and writes; `workspace` is one that no other stream uses at the time. Raises ProductError where
    there is no such library.
    """
    device = torch.cuda.current_device()
    handle(device)
    problem = _problem_of(x, weight, out, workspace)
    if problem is None:
        return {}
    try:
        return _describe(device, problem).bind((x, weight, out, workspace), only)
    except ProductError:
        _describe.cache_clear()  # what it has is of no use
        return {}


def alignment(tensor: torch.Tensor) -> int:
    """The power of two, up to 256, that a tensor's address is a multiple of, and those of its batches."""
    address = tensor.data_ptr()
    if tensor.dim() > 2:
        address |= tensor.stride(0) * tensor.element_size()
    return min(_MOST_ALIGNMENT, address & -address or _MOST_ALIGNMENT)


@dataclass(frozen=True, slots=True)
class _Matrix:
    """Columns of `rows` elements, `pitch` elements apart; those of a batch are `offset` elements apart."""

    rows: int
    columns: int
    pitch: int
    offset: int
    alignment: int


@dataclass(frozen=True, slots=True)
class _Problem:
    batch: int
    a: _Matrix
    b: _Matrix
    out: _Matrix
    kind: int
    workspace: int


def _matrix(tensor: torch.Tensor) -> _Matrix | None:
    """A tensor of rows, (R, C) or (batch, R, C), as a matrix of R columns; None if its rows do not lie well."""
    columns, rows = tensor.shape[-2:]
    pitch = tensor.stride(-2) if columns > 1 else -(-rows // _LEAST_ALIGNMENT) * _LEAST_ALIGNMENT
    aligned = alignment(tensor)
    whole = pitch * tensor.element_size() % _LEAST_ALIGNMENT == 0 and aligned >= _LEAST_ALIGNMENT
    if pitch < rows or not whole or (rows > 1 and tensor.stride(-1) != 1):
        return None
    return _Matrix(rows, columns, pitch, tensor.stride(0) if tensor.dim() > 2 else 0, aligned)


def _problem_of(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, workspace: torch.Tensor) -> _Problem | None:
    if not _multiplies(x, weight, out):
        return None
    a, b, result = _matrix(weight.transpose(-1, -2)), _matrix(x), _matrix(out)
    count = out.shape[0] if out.dim() > 2 else 1
    if a is None or b is None or result is None or (count > 1 and not result.offset):
        return None
    return _Problem(count, a, b, result, _KINDS[out.dtype], workspace.numel())


def _multiplies(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> bool:
    """Whether these are operands of a product on the GPU, of types that are known here."""
    if x.dim() not in (2, 3) or not x.dim() == weight.dim() == out.dim():
        return False
    *batch, rows, width = x.shape
    n = weight.shape[-1]
    shapes = tuple(weight.shape) == (*batch, width, n) and tuple(out.shape) == (*batch, rows, n)
    types = x.dtype == weight.dtype == torch.bfloat16 and out.dtype in _KINDS
    return shapes and types and bool(x.numel() and n) and all(it.is_cuda for it in (x, weight, out))


class _Described:
    """A problem's descriptors in the library, destroyed with the last call that has them, and its algorithms."""

    def __init__(self, device: int, problem: _Problem) -> None:
        self._device, self._handle, self._problem = device, handle(device), problem
        self._made: _Made = []
        weakref.finalize(self, _destroy, self._made)
        self._what = self._create("MatmulDesc", _COMPUTE_FLOAT, _FLOAT)
        self._set("MatmulDesc", self._what, _TRANSPOSE_A, ctypes.c_int32(_OP_TRANSPOSED))
        self._a, self._b = (self._layout(matrix, _BFLOAT16) for matrix in (problem.a, problem.b))
        self._out = self._layout(problem.out, problem.kind)
        self._layouts = self._a, self._b, self._out, self._out
        self._one, self._zero = ctypes.c_float(1), ctypes.c_float(0)
        self._named: dict[str, Algorithm | None] = {}

    @cached_property
    def algorithms(self) -> dict[str, Algorithm]:
        """All of them. To ask for them takes milliseconds."""
        found = [*self._guesses()]
        if torch.cuda.get_device_capability(self._device) == _HOPPER:
            found += self._hopper()
        made: dict[str, Algorithm] = {}
        for algorithm in found:
            made.setdefault(name_of(algorithm), algorithm)
        return made

    def named(self, name: str) -> Algorithm | None:
        """The algorithm of this name, made from what the name says if the library takes it: once for all layers."""
        if name not in self._named:
            values = said_by(name)
            made = self._taken(values) if values else None
            taken = made is not None and name_of(made) == name
            self._named[name] = made if taken else self.algorithms.get(name)
        return self._named[name]

    def bind(self, operands: tuple[torch.Tensor, ...], only: str | None) -> dict[str, Callable[[], None]]:
        """The calls of all algorithms over x, weight, out and workspace, or of one."""
        wanted = self.algorithms if only is None else {only: self.named(only)}
        x, weight, out, workspace = (operand.data_ptr() for operand in operands)
        enqueue, one, zero = library().cublasLtMatmul, ctypes.byref(self._one), ctypes.byref(self._zero)
        before = self._handle, self._what, one, weight, self._a, x, self._b, zero, out, self._out, out, self._out
        after, kept = (workspace, self._problem.workspace), (self, operands)

        def way(name: str, algorithm: Algorithm) -> Callable[[], None]:
            chosen = ctypes.byref(algorithm)

            def launch(_kept: object = kept) -> None:
                status = enqueue(*before, chosen, *after, torch.cuda.current_stream().cuda_stream)
                require_launched(status, name)

            return launch

        return {name: way(name, algorithm) for name, algorithm in wanted.items() if algorithm is not None}

    def _guesses(self) -> Iterator[Algorithm]:
        """What the library's heuristics give, the likely fastest first."""
        problem, preference = self._problem, self._create("MatmulPreference")
        sums = _SUMS_APART | (_SUMS_IN_PLACE if problem.kind == _FLOAT else 0)
        values: dict[int, Any] = {_WORKSPACE: ctypes.c_uint64(problem.workspace), _SUMS: ctypes.c_uint32(sums)}
        values[_ALIGNMENT_A] = ctypes.c_uint32(problem.a.alignment)
        values[_ALIGNMENT_B] = ctypes.c_uint32(problem.b.alignment)
        values[_ALIGNMENT_C] = values[_ALIGNMENT_D] = ctypes.c_uint32(problem.out.alignment)
        for attribute, value in values.items():
            self._set("MatmulPreference", preference, attribute, value)
        found, count = (Found * _GUESSES)(), ctypes.c_int()
        status = library().cublasLtMatmulAlgoGetHeuristic(
            self._handle, self._what, *self._layouts, preference, _GUESSES, found, ctypes.byref(count)
        )
        require(status, f"asking for algorithms of {problem}")
        for one in found[: count.value]:
            if one.state == _SUCCESS and one.workspace <= problem.workspace:
                yield Algorithm.from_buffer_copy(one.algorithm)

    def _hopper(self) -> Iterator[Algorithm]:
        """Those of `_HOPPER_WAYS` that the library takes for the problem."""
        for tile, cluster, swizzle, custom in _HOPPER_WAYS:
            given = {"tile": tile, "cluster": cluster, "swizzle": swizzle, "custom": custom, "stages": _HOPPER_STAGES}
            made = self._taken({"id": _HOPPER_ID, **given, "split": 1, "sums": 0, "inner": 0})
            if made is not None:
                yield made

    def _taken(self, values: dict[str, int]) -> Algorithm | None:
        """The algorithm of this configuration, if the library has it for the problem."""
        kinds = _BFLOAT16, _BFLOAT16, self._problem.kind, self._problem.kind
        algorithm, found = Algorithm(), Found()
        try:
            status = library().cublasLtMatmulAlgoInit(
                self._handle, _COMPUTE_FLOAT, _FLOAT, *kinds, values["id"], ctypes.byref(algorithm)
            )
            require(status, "making an algorithm")
            configure(algorithm, {name: value for name, value in values.items() if name != "id"})
            status = library().cublasLtMatmulAlgoCheck(
                self._handle, self._what, *self._layouts, ctypes.byref(algorithm), ctypes.byref(found)
            )
            require(status, "checking an algorithm")
        except ProductError:
            return None
        return algorithm if found.state == _SUCCESS and found.workspace <= self._problem.workspace else None

    def _layout(self, matrix: _Matrix, kind: int) -> ctypes.c_void_p:
        layout = self._create("MatrixLayout", kind, matrix.rows, matrix.columns, matrix.pitch)
        if self._problem.batch > 1:
            self._set("MatrixLayout", layout, _BATCH_COUNT, ctypes.c_int32(self._problem.batch))
            self._set("MatrixLayout", layout, _BATCH_OFFSET, ctypes.c_int64(matrix.offset))
        return layout

    def _create(self, what: str, *arguments: int) -> ctypes.c_void_p:
        made, functions = ctypes.c_void_p(), library()
        require(getattr(functions, f"cublasLt{what}Create")(ctypes.byref(made), *arguments), f"describing {what}")
        self._made.append((getattr(functions, f"cublasLt{what}Destroy"), made))
        return made

    def _set(self, what: str, of: ctypes.c_void_p, attribute: int, value: Any) -> None:
        change = getattr(library(), f"cublasLt{what}SetAttribute")
        require(change(of, attribute, ctypes.byref(value), ctypes.sizeof(value)), f"attribute {attribute} of {what}")


@lru_cache(_KEPT_PROBLEMS)
def _describe(device: int, problem: _Problem) -> _Described:
    return _Described(device, problem)


def _destroy(made: _Made) -> None:
    for destroy, descriptor in reversed(made):
        destroy(descriptor)
