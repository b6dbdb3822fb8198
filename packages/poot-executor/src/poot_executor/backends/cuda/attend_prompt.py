"""Paged attention of prompts on Hopper, by a kernel in CUDA C++ (`source/attend_prompt.cu`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from poot_executor.backends.cuda.boxes import Boxes
from poot_executor.backends.cuda.programs import Program
from poot_executor.backends.triton.kernels.items import Attended

_ROWS = 128  # of a matrix of (query, head) pairs
_KEYS = 128  # that a stage has, and values
_THREADS = 384
_STAGES = {64: 4, 128: 3}  # of heads so wide


def accepts(it: Attended) -> bool:
    """Whether a site's attention is one for this kernel."""
    tensors = it.q, it.k_pool, it.v_pool
    even = all(stride % 8 == 0 for stride in it.q.stride()[:2]) and it.q.stride(2) == 1
    whole = it.op.block % 8 == 0 and _KEYS % it.op.block == 0
    return (
        it.rows <= _ROWS
        and it.q.shape[2] in _STAGES
        and even
        and whole
        and it.k_pool.shape == it.v_pool.shape
        and len(it.k_pool) > 0
        and all(tensor.dtype == torch.bfloat16 and tensor.data_ptr() % 16 == 0 for tensor in tensors)
        and all(tensor.is_contiguous() for tensor in (it.k_pool, it.v_pool))
    )


def program(it: Attended, *, pdl: bool) -> Program:
    """The kernel of a site's attention."""
    known = it.constants
    names = "HEADS", "KV_HEADS", "DIM", "TILE", "PAGE", "WINDOW", "CAPPED", "SINKS", "SPLITS"
    macros = {name: known[name] for name in names} | {"STAGES": _STAGES[it.q.shape[2]], "PDL": pdl}
    given = tuple((name, int(value)) for name, value in macros.items())
    return Program("attend_prompt.cu", "attend_prompt", given, own=True)


def attend_prompt(it: Attended, device: Any) -> Callable[[], object]:
    """The launch. Its locks are zero between runs."""
    width = it.q.shape[2]
    shared = _STAGES[width] * (2 * _KEYS * width * 2 + 16) + _ROWS * (2 * width + 16) + 32
    keys = Boxes(it.k_pool.view(len(it.k_pool), -1), it.op.block)
    q_pitch, q_head, table_pitch, scale, softcap = it.numbers
    arguments = (
        *(it.q, keys, it.v_pool, *it.tensors),
        *(int(q_pitch), int(q_head), int(table_pitch), float(scale), float(softcap)),
    )
    made = program(it, pdl=device.pdl)
    return device.bind(made, (device.processors, 1, 1), _THREADS, shared, arguments)  # type: ignore[no-any-return]
