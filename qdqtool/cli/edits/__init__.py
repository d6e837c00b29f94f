"""The commands that change a model and have more than their verb, one a file."""
