"""Compiled kernels on the GPU: loaded, and launched on torch's streams, through the driver's library."""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from poot_executor.backends.cuda.boxes import Boxes, encode
from poot_executor.backends.cuda.libraries import DRIVER
from poot_executor.backends.cuda.nvrtc import ProgramError
from poot_executor.backends.triton.failure import failure
from poot_executor.errors import BackendUnavailableError, CapacityError, DeviceError, GraphError

# Numbers of cuda.h.
_MOST_THREADS, _LOCAL_BYTES, _REGISTERS, _MOST_DYNAMIC_SHARED = 0, 3, 4, 8  # CU_FUNC_ATTRIBUTE_...
_CLUSTER_DIMENSION, _PROGRAMMATIC_STREAM_SERIALIZATION = 4, 6  # CU_LAUNCH_ATTRIBUTE_...
_OUT_OF_MEMORY = 2
# After these the context is well, the request was not: invalid value, image, context; no binary for this GPU; PTX
# that is invalid or too new; nothing of that name; more registers or shared memory than there are.
_REFUSALS = {1, 200, 201, 209, 218, 222, 500, 701}
_GRID = (2**31 - 1, 2**16 - 1, 2**16 - 1)

# What a kernel that cannot be had raises: another way may do the same.
UNAVAILABLE = ProgramError, GraphError, BackendUnavailableError

Argument = torch.Tensor | Boxes | int | float | None


class _LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: 72 bytes, the union of its values 64 bytes at 8."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("pad", ctypes.c_char * 4),
        ("value", ctypes.c_uint * 3),
        ("rest", ctypes.c_char * 52),
    )


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig: 56 bytes, the stream at 32, the attributes at 40, their number at 48."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_LaunchAttribute)),
        ("count", ctypes.c_uint),
    )


@dataclass(frozen=True, slots=True)
class Attributes:
    """What a kernel takes: registers and bytes of local memory (spills) a thread, and the most threads of a block."""

    registers: int
    local: int
    threads: int


class Kernel:
    """A kernel loaded in a context, where it stays as long as the process."""

    def __init__(self, name: str, function: ctypes.c_void_p) -> None:
        self.name, self._function = name, function
        self.attributes = Attributes(*map(self._attribute, (_REGISTERS, _LOCAL_BYTES, _MOST_THREADS)))
        self._sizes = _argument_sizes(function)
        self._shared, self._lock = self._attribute(_MOST_DYNAMIC_SHARED), threading.Lock()

    def bind(
        self,
        grid: tuple[int, int, int],
        threads: int,
        shared: int,
        arguments: Sequence[Argument],
        *,
        pdl: bool,
        cluster: int = 1,
    ) -> Callable[[], None]:
        """A call that launches the kernel on torch's current stream, as often as one likes, also under capture.

        A tensor goes as its address (the call keeps it alive), boxes as their map, an int as int32, a float as float32,
        None as a null pointer. `shared` is bytes of dynamic shared memory. `pdl`: the kernel may start before its
        predecessor ends, and waits for it itself. `cluster`: blocks of a cluster, as the kernel says; then no more of
        them are launched than run at once. Raises GraphError for what does not fit, ProgramError for what the driver
        refuses.
        """
        cells = [_cell(self.name, argument) for argument in arguments]
        self._check(grid, threads, shared, cells)
        self._allow(shared)
        parameters = (ctypes.c_void_p * len(cells))(*map(ctypes.addressof, cells))
        if cluster > 1:
            if grid[0] % cluster:
                raise GraphError(f"{self.name}: no grid of clusters of {cluster} is {grid}")
            grid = (min(grid[0], cluster * self._clusters(grid, threads, shared, cluster)), *grid[1:])
        attribute = _LaunchAttribute(id=_PROGRAMMATIC_STREAM_SERIALIZATION, value=(1, 0, 0))
        bound = _LaunchConfig(grid, (threads, 1, 1), shared, None, ctypes.pointer(attribute), int(pdl))
        function, name, kept = self._function, self.name, (cells, attribute, tuple(arguments))
        enqueue = _library().cuLaunchKernelEx

        def launch(_kept: object = kept) -> None:
            config = _LaunchConfig.from_buffer_copy(bound)  # its own, since threads may have streams of their own
            config.stream = torch.cuda.current_stream().cuda_stream
            _require(enqueue(ctypes.byref(config), function, parameters, None), f"launching {name}")

        return launch

    def _check(self, grid: tuple[int, int, int], threads: int, shared: int, cells: Sequence[Any]) -> None:
        if not all(1 <= size <= most for size, most in zip(grid, _GRID, strict=True)):
            raise GraphError(f"{self.name}: no grid is {grid}, its sizes are 1 to {_GRID}")
        if not 1 <= threads <= self.attributes.threads:
            raise GraphError(f"{self.name}: {threads} threads a block, of 1 to {self.attributes.threads}")
        if not 0 <= shared < 2**31:
            raise GraphError(f"{self.name}: {shared} bytes of shared memory")
        sizes = tuple(map(ctypes.sizeof, cells))
        # A missing argument would be read from beyond the others.
        if self._sizes is not None and sizes != self._sizes:
            raise GraphError(f"{self.name}: arguments of {sizes} bytes, and it takes {self._sizes}")

    def _clusters(self, grid: tuple[int, int, int], threads: int, shared: int, cluster: int) -> int:
        """How many clusters run at once."""
        attribute = _LaunchAttribute(id=_CLUSTER_DIMENSION, value=(cluster, 1, 1))
        config, count = _LaunchConfig(grid, (threads, 1, 1), shared, None, ctypes.pointer(attribute), 1), ctypes.c_int()
        status = _library().cuOccupancyMaxActiveClusters(ctypes.byref(count), self._function, ctypes.byref(config))
        _require(status, f"asking how many clusters of {self.name} there may be")
        if not count.value:
            raise ProgramError(f"this GPU runs no clusters of {cluster} blocks of {self.name}")
        return count.value

    def _allow(self, shared: int) -> None:
        """Raise the kernel's bound on dynamic shared memory. Never lower: earlier launches need theirs."""
        with self._lock:
            if shared > self._shared:
                status = _library().cuFuncSetAttribute(self._function, _MOST_DYNAMIC_SHARED, shared)
                _require(status, f"giving {self.name} {shared} bytes of shared memory")
                self._shared = shared

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        status = _library().cuFuncGetAttribute(ctypes.byref(value), number, self._function)
        _require(status, f"asking about {self.name}")
        return value.value


def load(image: bytes, kernel: str) -> Kernel:
    """A kernel of a cubin, in the context of torch's current device; the same one each time.

    Raises ProgramError where the driver refuses the image or finds no such kernel, BackendUnavailableError without a
    driver.
    """
    _library()
    return _kernel(_context(), image, kernel)


def _context() -> int:
    """The context of torch's current device, made current in this thread, which may not have used the GPU yet."""
    try:
        index = torch.cuda.current_device()
    except RuntimeError as error:
        raise failure(error) from error
    device, context, library = ctypes.c_int(), ctypes.c_void_p(), _library()
    _require(library.cuDeviceGet(ctypes.byref(device), index), f"finding GPU {index}")
    _require(library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), f"opening GPU {index}")
    _require(library.cuCtxSetCurrent(context), f"using GPU {index}")
    return context.value or 0


@cache
def _kernel(context: int, image: bytes, name: str) -> Kernel:
    function = ctypes.c_void_p()
    status = _library().cuModuleGetFunction(ctypes.byref(function), _module(context, image), name.encode())
    _require(status, f"finding the kernel {name}")
    return Kernel(name, function)


@cache
def _module(context: int, image: bytes) -> ctypes.c_void_p:
    module = ctypes.c_void_p()
    _require(_library().cuModuleLoadData(ctypes.byref(module), image), "loading a program")
    return module


@cache
def _library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(DRIVER)
    except OSError as error:
        raise BackendUnavailableError(f"the NVIDIA driver's library does not load: {error}") from error


def _argument_sizes(function: ctypes.c_void_p) -> tuple[int, ...] | None:
    """Bytes of each of a kernel's parameters; None where the driver is too old to say (before CUDA 12.4)."""
    ask = getattr(_library(), "cuFuncGetParamInfo", None)
    if ask is None:
        return None
    sizes: list[int] = []
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    while not ask(function, ctypes.c_size_t(len(sizes)), ctypes.byref(offset), ctypes.byref(size)):
        sizes.append(size.value)
    return tuple(sizes)


def _cell(name: str, argument: Argument) -> Any:
    """An argument as the kernel reads it."""
    if argument is None:
        return ctypes.c_void_p()
    if isinstance(argument, torch.Tensor | Boxes):
        tensor = argument.tensor if isinstance(argument, Boxes) else argument
        if not tensor.is_cuda:
            raise GraphError(f"{name}: a tensor on {tensor.device} is none that the GPU reads")
        return encode(argument) if isinstance(argument, Boxes) else ctypes.c_void_p(tensor.data_ptr())
    if isinstance(argument, int):
        if not -(2**31) <= argument < 2**31:
            raise GraphError(f"{name}: {argument} is no 32-bit integer")
        return ctypes.c_int32(argument)
    cell = ctypes.c_float(argument)
    if math.isinf(cell.value) and not math.isinf(argument):
        raise GraphError(f"{name}: {argument} is no 32-bit float")
    return cell


def _require(status: int, doing: str) -> None:
    """Raise the error of a driver's status, with its name and meaning."""
    if not status:
        return
    said = []
    for ask in (_library().cuGetErrorName, _library().cuGetErrorString):
        text = ctypes.c_char_p()
        ask(status, ctypes.byref(text))
        said.append(text.value.decode(errors="replace") if text.value else f"status {status}")
    message = f"{doing}: {said[0]} ({said[1]})"
    if status == _OUT_OF_MEMORY:
        raise CapacityError(f"the GPU has no memory left: {message}")
    raise ProgramError(message) if status in _REFUSALS else DeviceError(f"the GPU failed: {message}")
