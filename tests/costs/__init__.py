"""Counted costs of commands: imported modules, Python calls, verifications, files and bytes read. Counts may only fall."""
