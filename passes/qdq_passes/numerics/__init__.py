"""Arithmetic of quantization: encodings, rounding, agreement. numpy only; no graph."""
