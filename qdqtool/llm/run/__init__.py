"""Running a folder of static decoder graphs."""

from __future__ import annotations

from qdq_passes.core.registry import FolderRegistry

#: Where devices are looked up by name. ``device_npusim.py`` makes the device ``npusim``: its ``device`` is called with
#: `qdqtool.llm.run.devices.DeviceOptions`, and gives a `Device`.
DEVICES = FolderRegistry("devices", ("qdqtool.verbs.devices",), prefix="device_", attribute="device")
