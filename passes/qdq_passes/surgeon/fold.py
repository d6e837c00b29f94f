"""Keeps graphsurgeon's constant folding from a silent error: it gives ``Shape<start, end>`` the whole shape (0.6.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: What such nodes are called while the graph is folded, so that graphsurgeon does not take them for a plain Shape.
_HIDDEN = "Shape<start, end>"


class FoldsShapes:
    """Goes before ``gs.Graph`` or ``gs.Function`` among the bases."""

    nodes: list[Any]

    def fold_constants(
        self, *args: Any, should_exclude_node: Callable[[Any], bool] | None = None, **kwargs: Any
    ) -> FoldsShapes:
        """As in graphsurgeon, but Shape nodes with ``start`` or ``end`` are left alone, and what depends on them."""
        hidden = [node for node in self.nodes if node.op == "Shape" and {"start", "end"} & node.attrs.keys()]
        for node in hidden:
            node.op = _HIDDEN

        def exclude(node: Any) -> bool:
            return node.op == _HIDDEN or bool(should_exclude_node and should_exclude_node(node))

        try:
            super().fold_constants(*args, should_exclude_node=exclude, **kwargs)  # type: ignore[misc]
        finally:
            for node in hidden:
                node.op = "Shape"
        return self
