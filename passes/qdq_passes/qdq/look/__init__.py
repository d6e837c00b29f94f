"""Queries on QDQ pairs."""
