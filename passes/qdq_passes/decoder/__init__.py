"""Passes that make static graphs of decoders."""
