"""Surgery at boundaries of precision."""
