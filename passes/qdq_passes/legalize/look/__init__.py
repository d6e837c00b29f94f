"""Queries on operators that a target has in another form."""
