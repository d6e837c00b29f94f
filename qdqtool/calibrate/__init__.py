"""Calibration: sample data → statistics of each tensor → ranges."""

from __future__ import annotations

from qdq_passes.core.registry import FolderRegistry

#: Where calibration methods are looked up by name.
METHODS = FolderRegistry("methods", ("qdqtool.calibrate.methods",))
