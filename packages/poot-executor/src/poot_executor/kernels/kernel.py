"""The three moments of a kernel, and the values that pass between them and the runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from poot_executor.encodings.types import Encoding
from poot_executor.ir.graph import Op
from poot_executor.ir.types import DType, TensorType

if TYPE_CHECKING:
    from poot_executor.devices.protocol import Allocation, Launch


@dataclass(frozen=True, slots=True)
class Site:
    """One node as its kernel sees it: element types are resolved; `names` and `encodings` are set for weights."""

    op: Op
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    names: tuple[str | None, ...]
    encodings: tuple[Encoding | None, ...]
    activation: DType


@dataclass(frozen=True, slots=True)
class WeightForm:
    """How a kernel wants weights held: one handle for all `names`, laid out as `layout`, taking `nbytes` of the device.

    Every entry that names the same form shares one handle. A form of no bytes reads the checkpoint where it lies.
    """

    layout: str
    names: tuple[str, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Operand:
    """A value's storage: a view of an allocation (offset in bytes, strides in elements)."""

    type: TensorType
    allocation: Allocation
    offset: int
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operands:
    """What a kernel is bound to. Weights stand in `held`, in the order of its forms; `inputs` has None there."""

    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand, ...]
    held: tuple[Any, ...]
    workspace: Operand | None

    def input(self, index: int) -> Operand:
        operand = self.inputs[index]
        if operand is None:
            raise TypeError(f"input {index} is a weight: read it from `held`")
        return operand


class Kernel(Protocol):
    """One way to run one op on one backend."""

    name: str

    def accepts(self, site: Site) -> str | None:
        """None, or why this kernel refuses the site."""

    def forms(self, site: Site) -> tuple[WeightForm, ...]:
        """The weights it needs held."""

    def workspace(self, site: Site) -> int:
        """Bytes of scratch at the worst live count."""

    def bind(self, site: Site, operands: Operands, device: Any) -> Launch:
        """Prepare a launch that allocates nothing on the device, synchronises nothing and decides nothing."""


K = TypeVar("K", bound=type)


class KernelTable:
    """A backend's kernels by op, in order of preference."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self._kernels: dict[type[Op], list[Kernel]] = {}

    def register(self, op: type[Op], *, preferred: bool = False) -> Callable[[K], K]:
        """Class decorator: add a kernel for `op` after those already known, or before them if it is `preferred`.

        Kernels have no constructor arguments.
        """

        def add(kernel: K) -> K:
            known = self._kernels.setdefault(op, [])
            known.insert(0 if preferred else len(known), kernel())
            return kernel

        return add

    def preferring(self, other: KernelTable) -> KernelTable:
        """This table with the other's kernels before its own."""
        both = KernelTable(self.backend)
        for op in {**other._kernels, **self._kernels}:
            both._kernels[op] = [*other.of(op), *self.of(op)]
        return both

    def of(self, op: type[Op]) -> tuple[Kernel, ...]:
        return tuple(self._kernels.get(op, ()))

    def __iter__(self) -> Iterator[type[Op]]:
        return iter(self._kernels)
