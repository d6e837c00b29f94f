"""Passes that turn quantized units into integer operators of the domain ai.qdqtool. One pass a file."""
