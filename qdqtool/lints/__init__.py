"""Lints on data: places where a grid of integers will hurt, seen in the values that a model takes on samples.

A rule is a frozen dataclass in a file of its own that yields `Trap`s from `LintContext`: the grids of a model, and the values
that stood on them. Nothing is wrong with such a model in float; every hint names the option of `quantize` that repairs it."""
