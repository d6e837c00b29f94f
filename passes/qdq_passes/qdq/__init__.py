"""Passes on QuantizeLinear/DequantizeLinear pairs and their encodings. One pass a file."""
