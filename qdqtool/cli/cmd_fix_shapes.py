"""Make dynamic dimensions static, and infer the shapes that follow."""

from qdqtool.cli.saving import edit_command
from qdqtool.verbs.fix_shapes import FixShapes

command = edit_command(FixShapes)
