"""What is known of each node and tensor of a quantized model: one form for all who find it out, and all who show it."""
