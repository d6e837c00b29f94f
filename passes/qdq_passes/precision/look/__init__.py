"""Queries: in how many bits operators compute."""
