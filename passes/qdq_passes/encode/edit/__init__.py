"""The policy of encodings, and surgery on what it decides."""
