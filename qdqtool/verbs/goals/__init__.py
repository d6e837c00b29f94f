"""Verbs that search until a goal is reached."""
