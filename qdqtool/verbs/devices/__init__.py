"""Devices that run language models; one file each, found by `qdqtool.llm.run.devices.DEVICES`."""
