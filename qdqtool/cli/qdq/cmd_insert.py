"""Insert pairs on selected tensors with an encoding given, or on a model from ranges or an encodings file."""

from qdqtool.cli.saving import edit_command
from qdqtool.verbs.qdq.insert import Insert

command = edit_command(Insert, idle=False)
