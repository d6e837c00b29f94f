"""Passes on the precision that nodes compute in."""
