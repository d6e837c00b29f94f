"""Surgery on QDQ pairs."""
