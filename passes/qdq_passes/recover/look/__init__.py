"""Queries on channels and the steps between them."""
