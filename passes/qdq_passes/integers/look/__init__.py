"""Queries on integers outside of QDQ pairs."""
