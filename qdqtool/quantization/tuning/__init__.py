"""Weights tuned together, by gradient, for what the whole model gives."""
