"""Verbs that find what is wrong with a model, one a file."""
