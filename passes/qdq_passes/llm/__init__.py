"""Passes that turn a decoder with a dynamic length into static prefill and decode graphs. One pass a file."""
