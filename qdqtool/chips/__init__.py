"""Chips as data: `<vendor>/<chip>.toml`, what a chip is, and what was measured on it under each runtime."""
