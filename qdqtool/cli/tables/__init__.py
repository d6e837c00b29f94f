"""What several commands print."""
