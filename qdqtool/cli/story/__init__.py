"""Commands about what quantizing did to a model."""
