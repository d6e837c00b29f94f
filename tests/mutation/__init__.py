"""Mutants of the product, and which tests kill them: ``python -m tests.mutation`` (docs/testing.md)."""
