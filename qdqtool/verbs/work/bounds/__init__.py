"""What a quantized model must reach, and warnings of what costs it much."""
