"""Passes that say which nodes a target computes, and in which partition. One pass a file."""
