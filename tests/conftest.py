"""Plugins of all tests, and what hypothesis asks of a machine: nothing that a busy one could not keep."""

from hypothesis import HealthCheck, settings

pytest_plugins = ("tests.dial",)

settings.register_profile("no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no clock")
