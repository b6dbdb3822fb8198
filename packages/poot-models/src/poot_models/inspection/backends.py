"""What each backend would hold and run, asked of its kernels on paper: nothing is allocated and no device opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, cast

from poot_executor.encodings import Dense, WeightSource
from poot_executor.errors import BackendUnavailableError, ExecutorError
from poot_models.blocks import StepShape
from poot_models.handle import ModelHandle
from poot_models.inspection.report import BackendFacts, Placement

if TYPE_CHECKING:
    from poot_executor.devices import Device
    from poot_executor.ir import DType
    from poot_executor.kernels import KernelTable, Site, WeightForm
    from poot_executor.runtime.compile import Compiled

# Tokens of the steps that are asked for: one row's next token, and a piece of a prompt.
_STEPS = (1, 64)
_BLOCK = 16


@dataclass(frozen=True, slots=True)
class _PaperDevice:
    """As much of a device as the choice of kernels asks for."""

    kernels: KernelTable
    activation: DType
    alignment: int = 256

    def tile(self, tokens: int, share: int) -> int:
        return 1

    def splits(self, tokens: int, width: int) -> int:
        return 1


def backend_facts(handle: ModelHandle) -> tuple[BackendFacts, ...]:
    """One of each backend that users can name, in the order of its table."""
    from poot_executor.devices.table import BACKENDS, load_backend

    found = []
    for name in BACKENDS:
        if name == "null":
            continue
        try:
            devices, closed = load_backend(name).describe(), None
        except BackendUnavailableError as error:
            devices, closed = (), str(error)
        try:
            device = _paper_device(name)
        except ImportError as error:
            found.append(BackendFacts(name, devices, closed, f"a package is not installed: {error}"))
            continue
        found.append(_asked(name, handle, device, devices, closed))
    return tuple(found)


def _paper_device(name: str) -> _PaperDevice:
    """ImportError: the backend's kernels need a package that is not there."""
    from poot_executor.ir import DType

    if name == "cpu":
        from poot_executor.backends.cpu.kernels import CPU_KERNELS

        return _PaperDevice(CPU_KERNELS, DType.F32)
    if name in ("ptx", "rocm"):
        from poot_executor.backends.triton.kernels import FEW_ROWS_KERNELS, TRITON_KERNELS

        kernels = TRITON_KERNELS.preferring(FEW_ROWS_KERNELS) if name == "ptx" else TRITON_KERNELS
        return _PaperDevice(kernels, DType.BF16)
    raise ImportError(f"the kernels of {name} cannot be asked")


def _asked(
    name: str, handle: ModelHandle, device: _PaperDevice, devices: tuple[str, ...], closed: str | None
) -> BackendFacts:
    from poot_executor.runtime import EntryKey, compile_graphs

    most = max(_STEPS)
    tables = tuple(group.blocks_per_row(most, _BLOCK, most) for group in handle.groups)
    shapes = [StepShape(tokens, 1, most, _BLOCK, tables, tables) for tokens in _STEPS]
    graphs = {EntryKey("step", shape.tokens): handle.step(shape) for shape in shapes}
    graphs[EntryKey("head", 1)] = handle.head(1, shapes[0])
    try:
        compiled = compile_graphs(cast("Device", device), graphs)
    except ExecutorError as error:
        return BackendFacts(name, devices, closed, str(error))
    elements = sum(group.block_elements(1) for group in handle.groups)
    return BackendFacts(
        name,
        devices,
        closed,
        activation=device.activation.name.lower(),
        weights=compiled.weights,
        kv_token=elements * device.activation.size,
        placements=_placements(handle.weights, compiled, device.kernels),
    )


def _placements(weights: Mapping[str, WeightSource], compiled: Compiled, kernels: KernelTable) -> tuple[Placement, ...]:
    found: dict[tuple[str, str], Placement] = {}
    for name, (form, site) in _forms(compiled).items():
        source = weights[name]
        nbytes = _share(name, form, weights)
        held = _held(source, form, nbytes)
        key = str(source.encoding), held
        if key not in found:
            reason = _refusal(name, site, kernels, weights) if held.startswith("in ") else ""
            found[key] = Placement(key[0], 0, held, 0, reason)
        before = found[key]
        found[key] = replace(before, tensors=before.tensors + 1, nbytes=before.nbytes + nbytes)
    return tuple(found.values())


def _forms(compiled: Compiled) -> dict[str, tuple[WeightForm, Site]]:
    """Each weight's form that takes the most memory, and a node that wants it."""
    found: dict[str, tuple[WeightForm, Site]] = {}
    for entry in compiled.entries.values():
        for choice in entry.choices:
            for form in choice.kernel.forms(choice.site) if choice else ():
                for name in form.names:
                    if choice and (name not in found or form.nbytes > found[name][0].nbytes):
                        found[name] = form, choice.site
    return found


def _share(name: str, form: WeightForm, weights: Mapping[str, WeightSource]) -> int:
    """The bytes of a form of several weights that are this one's."""
    elements = sum(prod(weights[other].shape) for other in form.names)
    return form.nbytes * prod(weights[name].shape) // elements


def _held(source: WeightSource, form: WeightForm, nbytes: int) -> str:
    dense = isinstance(source.encoding, Dense)
    bits = 8 * nbytes // prod(source.shape)
    if form.layout == "mapped" or nbytes == source.data.size:
        return "as stored" if dense else "packed"
    # A packed layout of a backend's own takes about as much as the file's.
    return "packed" if not dense and bits < 16 else f"in {bits} bits"


def _refusal(name: str, site: Site, kernels: KernelTable, weights: Mapping[str, WeightSource]) -> str:
    """What the kernel says that would have left the weight as it is, if there is one."""
    for kernel in kernels.of(type(site.op)):
        refused = kernel.accepts(site)
        forms = [form for form in kernel.forms(site) if name in form.names] if refused else []
        if any(not _held(weights[name], form, _share(name, form, weights)).startswith("in ") for form in forms):
            return f"{kernel.name}: {refused}"
    return "no kernel takes it as it is stored"
