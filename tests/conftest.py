"""Plugins of all tests, and what hypothesis asks of a machine: nothing that a busy one could not keep."""

import gc
import os

from hypothesis import HealthCheck, settings

pytest_plugins = ("tests.recent_failures", "tests.dial", "tests.skip_reasons")  # the dial imports the other

settings.register_profile("no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no clock")

# An error that a pass makes while a model is quantized names the pass.
os.environ.setdefault("QDQTOOL_VERIFY_EACH", "1")

# The items of all tests and what modules have cached are looked through in each full collection: one in nine seconds of a run,
# less than one in fifteen with fourteen times as many new objects in between.
gc.set_threshold(10_000, 10, 10)
