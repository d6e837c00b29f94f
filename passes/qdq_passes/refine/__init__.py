"""Passes that move the power-of-two positions of pairs to where an NPU can shift between them. One pass a file."""
