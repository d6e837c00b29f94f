"""Values of nodes that can be computed without a runtime."""
