"""Move the tensors of MODEL into a data file beside OUTPUT (or back with --inline); nothing else changes."""

from qdqtool.cli.saving import edit_command
from qdqtool.verbs.externalize import Externalize

command = edit_command(Externalize)
