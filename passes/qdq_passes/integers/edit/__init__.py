"""Surgery on integers outside of QDQ pairs."""
