"""Passes that turn a graph into what a target accepts or computes. One pass a file."""
