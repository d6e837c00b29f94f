"""Exports of real architectures without their weights: graphs as exporters write them, filled with seeded numbers."""
