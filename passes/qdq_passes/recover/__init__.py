"""Passes that win back accuracy before or behind quantization, mostly from statistics of data. One pass a file."""
