"""Queries on nodes that change nothing."""
