"""What an operator was before it was made to compute as the DPU does, on the node, so that undo-dpu-edits need not guess: many
slopes are rounded to one, and a Sigmoid becomes what a HardSigmoid is."""

from __future__ import annotations

import onnx_ir as ir

from qdq_passes.errors import ModelError

#: In ``metadata_props`` of a node: its operator, or its slope.
KEY = "qdqtool.before_dpu"


def mark(node: ir.Node, before: str) -> None:
    """Note on ``node`` what it was, unless an earlier edit did."""
    node.metadata_props.setdefault(KEY, before)


def marked(node: ir.Node) -> str | None:
    """What ``node`` was, where that is noted."""
    return node.metadata_props.get(KEY)


def marked_slope(node: ir.Node) -> float | None:
    """The slope that ``node`` had, where that is noted.

    Raises:
        ModelError: the note is no number.
    """
    text = marked(node)
    try:
        return None if text is None else float(text)
    except ValueError as error:
        raise ModelError(
            f"its metadata {KEY} is no number: {text}", where=node.name, hint="remove that entry"
        ) from error


def unmark(node: ir.Node) -> None:
    """Drop the note: ``node`` is again what it was."""
    node.metadata_props.pop(KEY, None)
