"""Move pairs across operators, up or down, where the arithmetic stays the same."""

from qdqtool.cli.saving import edit_command
from qdqtool.verbs.qdq.move import Move

command = edit_command(Move, idle=False)
