"""inline-functions"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir
from onnx_ir.passes import common

from qdq_passes.analysis.scopes import NAME_SCOPES, NAMESPACE, SCOPE, scope_of
from qdq_passes.analysis.uses import all_nodes
from qdq_passes.core.base import EXACT, Change, Keeps, Pass
from qdq_passes.core.wrap import changes_of

#: Set on calls while they are inlined: onnx_ir copies a call's metadata to the nodes of its body.
_CALL = "qdqtool.call"


@dataclass(frozen=True)
class InlineFunctions(Pass):
    """Replace every call of a local function by the function's body, and drop the functions.

    Graph: ``y = local::Block(x)`` → ``t = Conv(x, w); y = Relu(t)``, with scope ``<scope of the call>.<name of the call>``.
    Requires: nothing.
    Keeps: inputs, outputs and their names; numerics bit-exact.
    Skips: models without local functions.
    """

    keeps: ClassVar[Keeps] = EXACT

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Run onnx_ir's inliner, then give nodes made from a body the scope of their call."""
        if not model.functions:
            return
        known = set(all_nodes(model))
        for node in known:
            if node.op_identifier() in model.functions:
                node.metadata_props[_CALL] = ".".join(part for part in (scope_of(node), node.name) if part)

        def inline(target: ir.Model) -> None:
            common.InlinePass()(target)
            common.RemoveUnusedOpsetsPass()(target)
            for node in all_nodes(target):
                call = node.metadata_props.pop(_CALL, None)
                if (
                    call
                    and node not in known
                    and not (NAME_SCOPES in node.metadata_props or NAMESPACE in node.metadata_props)
                ):
                    node.metadata_props[SCOPE] = call

        yield from changes_of(model, inline, "inlined")
