"""Surgery on scales that are powers of two."""
