"""Operators of programs, those of the domain ai.qdqtool: a class for each says what it takes, plans, writes and costs."""

#: Domain and version of the operators of programs.
DOMAIN, VERSION = "ai.qdqtool", 1
