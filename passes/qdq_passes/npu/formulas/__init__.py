"""Formulas of functions and interpolations that programs compute."""
