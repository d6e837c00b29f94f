"""The commands of ``qdqtool qdq``, one a file."""
