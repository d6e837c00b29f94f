"""Queries on decoders: cache, masks, positions, logits."""
