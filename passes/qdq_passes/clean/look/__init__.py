"""Questions that cleaning passes ask of a graph."""
