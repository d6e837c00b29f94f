"""Passes that decide who gets which encoding."""
