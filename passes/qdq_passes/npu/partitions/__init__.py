"""Partitions: which nodes run together on the NPU."""
