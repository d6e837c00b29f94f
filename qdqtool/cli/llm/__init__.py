"""The commands of `qdqtool llm`, one file each."""
