"""Plugins of all tests, and what the process that runs them sets."""

import gc
import os

pytest_plugins = ("tests.recent_failures", "tests.dial", "tests.skip_reasons")  # the dial imports the other

# An error that a pass makes while a model is quantized names the pass.
os.environ.setdefault("QDQTOOL_VERIFY_EACH", "1")

# Full collections are one in fifteen seconds of a run at this threshold, one in nine at Python's own.
gc.set_threshold(10_000, 10, 10)


def pytest_collection_finish() -> None:
    """Keep modules and items, which live as long as the run, out of later garbage collections."""
    gc.freeze()
