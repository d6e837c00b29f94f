"""Passes that tidy a graph without changing what it computes. One pass a file."""
