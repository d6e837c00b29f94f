"""Searches on quantized models: sensitivity, mixed precision, metrics, recipes."""
