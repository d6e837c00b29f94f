"""Passes that fold or mark neighbouring operators as one. One pass a file."""
