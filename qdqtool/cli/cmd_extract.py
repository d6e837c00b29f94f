"""Cut the part of MODEL between values out as a model of its own."""

from qdqtool.cli.saving import edit_command
from qdqtool.verbs.extract import Extract

command = edit_command(Extract)
