"""Make one pair of several pairs on the same value."""

from qdqtool.cli.saving import edit_command
from qdqtool.verbs.qdq.share import Share

command = edit_command(Share, idle=False)
