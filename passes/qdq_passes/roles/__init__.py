"""What nodes are for, found by the structure of the graph: attention, norms, MLP, rotary embedding, head."""
