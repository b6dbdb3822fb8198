"""Devices and backends: the protocols, the lazy table, `auto`."""

from poot_executor.devices.protocol import Backend, Device, Foresighted, Launch, Live, Metered, Recording
from poot_executor.devices.table import BACKENDS, Probe, open_device, probe

__all__ = [
    "BACKENDS",
    "Backend",
    "Device",
    "Foresighted",
    "Launch",
    "Live",
    "Metered",
    "Probe",
    "Recording",
    "open_device",
    "probe",
]
