"""One's way through a graph: who uses a value, scopes, places, annotations, edits."""
