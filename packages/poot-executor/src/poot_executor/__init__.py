"""poot-executor: devices, memory plan, static-shape graphs and kernels for language models."""

from poot_executor.errors import (
    BackendUnavailableError,
    CapacityError,
    DeviceError,
    EncodingError,
    ExecutorError,
    GraphError,
    KernelUnavailableError,
)

__version__ = "0.1.0"

__all__ = [
    "BackendUnavailableError",
    "CapacityError",
    "DeviceError",
    "EncodingError",
    "ExecutorError",
    "GraphError",
    "KernelUnavailableError",
    "__version__",
]
