"""Questions about a graph. Read only; every query returns a list (or a mapping), never a generator."""
