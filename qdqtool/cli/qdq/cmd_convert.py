"""Convert pairs: width, signedness, symmetry, granularity, domain; bias types; integer operators into pairs."""

from qdqtool.cli.saving import edit_command
from qdqtool.verbs.qdq.convert import Convert

command = edit_command(Convert, idle=False)
