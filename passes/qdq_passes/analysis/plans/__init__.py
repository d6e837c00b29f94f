"""Plans: what a unit becomes in a program of the NPU, as numbers. Lowering writes them down."""
