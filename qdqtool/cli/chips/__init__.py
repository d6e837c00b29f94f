"""Commands about times on chips."""
