"""Verification: one table of rules over structure, names, types and the meaning of QDQ."""
