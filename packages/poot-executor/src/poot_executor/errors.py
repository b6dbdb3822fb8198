"""Errors of poot-executor.

ExecutorError                  "executor"
├── GraphError                 "graph"                a graph or a call that is not well formed (a fault of the caller)
├── EncodingError              "encoding"             a weight whose bytes do not fit its encoding or shape
├── CapacityError              "capacity"             a workload that does not fit the device, with the shortfall
├── KernelUnavailableError     "kernel_unavailable"   no kernel of the backend accepts a node, with every refusal
├── BackendUnavailableError    "backend_unavailable"  a backend that cannot open here, with the reason
└── DeviceError                "device"               the device failed while it ran
"""

from __future__ import annotations

from typing import ClassVar


class ExecutorError(Exception):
    """Root of the errors of this package; `code` is stable across releases."""

    code: ClassVar[str] = "executor"


class GraphError(ExecutorError):
    code = "graph"


class EncodingError(ExecutorError):
    code = "encoding"


class CapacityError(ExecutorError):
    """A workload does not fit. `shortfall` is in bytes (0 when unknown)."""

    code = "capacity"

    def __init__(self, message: str, *, shortfall: int = 0) -> None:
        super().__init__(message)
        self.shortfall = shortfall


class KernelUnavailableError(ExecutorError):
    code = "kernel_unavailable"


class BackendUnavailableError(ExecutorError):
    code = "backend_unavailable"


class DeviceError(ExecutorError):
    code = "device"
