"""The commands of ``qdqtool qdq`` that do not write a model, one a file."""
