"""Naming profiles, one TOML file each; `qdqtool.llm.naming` reads them."""
