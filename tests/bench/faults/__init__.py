"""Planted faults: quantized models with one known fault each, and how well a ranking finds it."""
