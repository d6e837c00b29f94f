"""Files that appear whole or not at all, and what is written in them."""
