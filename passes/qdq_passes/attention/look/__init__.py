"""Queries on attention operators."""
