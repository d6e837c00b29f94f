"""Naming profiles, one TOML file each; `qdqtool.llm.plan.naming` reads them."""
