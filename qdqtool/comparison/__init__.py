"""Comparison of two models on the same data: which outputs and tensors differ, and by how much."""
