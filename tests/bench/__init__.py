"""Benchmarks: paired in one run, reported as ratios. `make bench` runs them all and fails where a bound is broken."""
