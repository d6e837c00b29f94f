"""Pipelines: passes in a row, as text and as objects, with hooks around each."""
