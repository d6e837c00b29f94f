"""Surgery that gives operators another form."""
