"""What quantization costs at the outputs, part by part."""
