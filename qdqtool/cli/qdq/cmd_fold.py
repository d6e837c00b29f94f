"""Fold pairs that do nothing new: doubled ones cancel, duplicates merge, float weights under a pair become integers."""

from qdqtool.cli.saving import edit_command
from qdqtool.verbs.qdq.fold import Fold

command = edit_command(Fold, idle=False)
