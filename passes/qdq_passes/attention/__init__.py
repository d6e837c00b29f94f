"""Passes that take attention operators apart."""
