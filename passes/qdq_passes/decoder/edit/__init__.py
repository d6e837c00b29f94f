"""Surgery on decoders."""
