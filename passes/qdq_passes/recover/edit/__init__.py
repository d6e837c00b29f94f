"""Surgery on channels."""
