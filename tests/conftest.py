"""Plugins of all tests, and what hypothesis asks of a machine: nothing that a busy one could not keep."""

import gc
import os

from hypothesis import HealthCheck, settings

pytest_plugins = ("tests.recent_failures", "tests.dial", "tests.skip_reasons")  # the dial imports the other

settings.register_profile("no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no clock")

# An error that a pass makes while a model is quantized names the pass.
os.environ.setdefault("QDQTOOL_VERIFY_EACH", "1")

# Full collections are one in fifteen seconds of a run at this threshold, one in nine at Python's own.
gc.set_threshold(10_000, 10, 10)


def pytest_collection_finish() -> None:
    """Keep modules and items, which live as long as the run, out of later garbage collections."""
    gc.freeze()
