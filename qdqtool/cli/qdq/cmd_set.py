"""Give pairs another scale, zero point or type; stored integers are requantized."""

from qdqtool.cli.saving import edit_command
from qdqtool.verbs.qdq.set import Set

command = edit_command(Set, idle=False)
