"""The commands about an NPU, one a file."""
