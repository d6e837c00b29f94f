"""The folder that a split writes."""
