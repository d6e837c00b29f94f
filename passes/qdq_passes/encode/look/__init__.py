"""Queries: who demands an encoding, and what is known of its values."""
