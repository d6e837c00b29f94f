"""Queries on positions and shifts."""
