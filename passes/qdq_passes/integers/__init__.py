"""Passes on integers outside of QDQ pairs: QOperators, dynamic quantization, packed weights."""
