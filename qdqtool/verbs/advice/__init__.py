"""Advice that is carried out on a copy of the model before it is given."""
