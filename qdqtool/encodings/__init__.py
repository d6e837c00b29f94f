"""Encodings of tensors in files of other tools: read, written, converted, put into a model and taken out of one."""
