"""Surgery on attention operators: pieces in their place."""
