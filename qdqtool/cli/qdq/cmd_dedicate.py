"""Give every reader of a value a pair of its own."""

from qdqtool.cli.saving import edit_command
from qdqtool.verbs.qdq.dedicate import Dedicate

command = edit_command(Dedicate, idle=False)
