"""Rename values (inputs and outputs included), nodes or symbolic dimensions."""

from qdqtool.cli.saving import edit_command
from qdqtool.verbs.rename import Rename

command = edit_command(Rename)
