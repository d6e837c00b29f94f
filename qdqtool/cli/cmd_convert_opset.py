"""Convert MODEL to another version of the default operator set."""

from qdqtool.cli.saving import edit_command
from qdqtool.verbs.convert_opset import ConvertOpset

command = edit_command(ConvertOpset)
