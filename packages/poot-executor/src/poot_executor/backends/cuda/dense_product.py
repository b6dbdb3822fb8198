"""Products with dense weights by torch, or by the one of cuBLASLt's algorithms that is the fastest here.

torch takes the library's first guess. Its other algorithms were up to 14 % faster on an H200 (256 rows of an 8B
decoder). Products of a thousand rows and more are bound by its power, and whole prompts took no less time by others.
Nor did they where the library adds the residual, and the norm after it reads half as much: of 2,048 rows that took
2 us of 116 from a product of 4,096 columns, and 1 of 367 from one of 14,336.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import TYPE_CHECKING

import torch

from poot_executor.backends.cuda import blaslt
from poot_executor.backends.cuda.blaslt_library import ProductError
from poot_executor.backends.triton.stopwatch import LIBRARY
from poot_executor.errors import CapacityError, DeviceError

if TYPE_CHECKING:
    from poot_executor.backends.cuda.device import CudaDevice

TORCH = "torch"
_MOST_ROWS = 512  # of which others are tried
_PERIOD = 256  # bytes: what matters of an address
_SEED = 1
_MOST_OFF = {2: 1e-2, inf: 5e-2}  # by the kind of norm, of the result's

# Binds a product of this x, whose weight and result are known, as torch makes it.
Plain = Callable[[torch.Tensor], Callable[[], object]]
Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def fastest_product(
    operands: Operands, workspace: torch.Tensor, plain: Plain, device: CudaDevice
) -> Callable[[], object]:
    """The launch of out = x @ weight, `operands` being x, weight and out (see `blaslt.products`).

    The ways are timed on noise in place of x: what x holds now is as little known as what shares its memory.
    """
    x, weight, out = operands
    if x.shape[-2] > _MOST_ROWS:
        return plain(x)
    site = f"{_said(x)} @ {_said(weight)} = {_said(out)}"
    name = device.settled(site)
    if name is None:
        name = _settled(site, operands, workspace, plain, device)
    way = None if name == TORCH else blaslt.products(x, weight, out, workspace, name).get(name)
    return way or plain(x)


def _settled(site: str, operands: Operands, workspace: torch.Tensor, plain: Plain, device: CudaDevice) -> str:
    """The name of what an earlier process has chosen, if it runs, or of the fastest."""
    name = device.known(site)
    if name is not None:
        way = None if name == TORCH else blaslt.products(*operands, workspace, name).get(name)
        if name == TORCH or (way is not None and _runs(way, device)):
            device.settle(site)
            return name
    if not blaslt.products(*operands, workspace):
        return TORCH
    ways = _right(operands, workspace, plain, device)
    return device.fastest(site, {name: partial(_itself, way) for name, way in ways.items()}, LIBRARY)


def _itself(way: Callable[[], object]) -> Callable[[], object]:
    return way


def _right(
    operands: Operands, workspace: torch.Tensor, plain: Plain, device: CudaDevice
) -> dict[str, Callable[[], object]]:
    """The ways that make of noise what torch's makes of it."""
    x, weight, out = operands
    # Weights may still be on their way: what is not there yet agrees with nothing, or, if it is zero, with everything.
    device.synchronize()
    with torch.cuda.stream(device.side):
        noise = noise_like(x)
        ways: dict[str, Callable[[], object]] = {TORCH: plain(noise)}
        ways[TORCH]()
        wanted = out.clone()
        for name, way in blaslt.products(noise, weight, out, workspace).items():
            out.fill_(torch.nan)  # not what was there before
            if _runs(way, device) and _agree(out, wanted):
                ways[name] = way
    return ways


def _agree(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether results differ by no more than the order of sums and rounding make them, all together and each: a few
    columns of zeros are little of a norm. `found` is spoilt."""
    found.sub_(wanted)
    return all(_norm(found, kind) <= most * _norm(wanted, kind) for kind, most in _MOST_OFF.items())


def _norm(of: torch.Tensor, kind: float) -> float:
    return float(torch.linalg.vector_norm(of, kind, dtype=torch.float32))


def noise_like(x: torch.Tensor) -> torch.Tensor:
    """Normal noise that lies in memory as x does: a device that multiplies zeros takes less power, and is faster."""
    size = x.element_size()
    span = 1 + sum((length - 1) * stride for length, stride in zip(x.shape, x.stride(), strict=True))
    room = x.new_empty(span + 2 * _PERIOD // size)
    start = (x.data_ptr() - room.data_ptr()) % _PERIOD // size
    return fill_with_noise(room.as_strided(x.shape, x.stride(), start))


def fill_with_noise(x: torch.Tensor) -> torch.Tensor:
    return x.normal_(generator=torch.Generator(x.device).manual_seed(_SEED))


def _runs(way: Callable[[], object], device: CudaDevice) -> bool:
    """Whether the library takes an algorithm in earnest: its checks pass some that cannot be launched, and what was
    chosen may have been another driver's."""
    try:
        with torch.cuda.stream(device.side):
            way()
    except ProductError:
        return False
    except (CapacityError, DeviceError):  # it has no room for this one's code, say, and torch's runs
        device.synchronize()  # if it is lost, this says so
        return False
    return True


def _said(tensor: torch.Tensor) -> str:
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"{kind} {tuple(tensor.shape)} by {tuple(tensor.stride())} at {blaslt.alignment(tensor)}"
