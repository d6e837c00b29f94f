"""Remove pairs, leaving the float value; stored integers are dequantized."""

from qdqtool.cli.saving import edit_command
from qdqtool.verbs.qdq.remove import Remove

command = edit_command(Remove, idle=False)
