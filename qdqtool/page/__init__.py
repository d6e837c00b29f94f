"""One HTML page of what is known of quantized models: a file without network, its script and its style beside this one."""
