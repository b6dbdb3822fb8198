"""Devices and backends: the protocols, the lazy table, `auto`."""

from poot_executor.devices.protocol import Backend, Device, Launch, Live, Metered, Recording
from poot_executor.devices.table import BACKENDS, Probe, open_device, probe

__all__ = ["BACKENDS", "Backend", "Device", "Launch", "Live", "Metered", "Probe", "Recording", "open_device", "probe"]
