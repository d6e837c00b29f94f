"""Paths of users through the tool, on an installation of their own."""
