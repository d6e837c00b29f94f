"""decompose-sdpa-kv-cache"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.attention.edit.function import DOMAIN, Inliner
from qdq_passes.core.base import EXACT, Change, Keeps, Pass
from qdq_passes.graph.build import Builder, take_place
from qdq_passes.graph.edit import drop_unused_domains


@dataclass(frozen=True)
class DecomposeSdpaKvCache(Pass):
    """Put the nodes of qdqtool.llm.SdpaWithKvCache where it is called: what fuse-sdpa-kv-cache had made one operator.

    Graph: the call → ``past_key, key → ScatterElements → present_key``, …, ``MatMul → Add(mask) → Softmax → MatMul → y``; slots
    that several layers make of the same positions are made once again. Nodes and values have their old names.
    Requires: nothing.
    Keeps: inputs, outputs and their names; numerics bit-exact.
    Skips: models without the operator.
    """

    keeps: ClassVar[Keeps] = EXACT

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Call by call; functions that nobody calls any more go."""
        inliner = Inliner(Builder(model))
        for node in list(model.graph):
            function = model.functions.get(node.op_identifier()) if node.domain == DOMAIN else None
            if function is not None:
                made = inliner.inline(node, function)
                yield take_place(node, made, inliner.namer, f"the nodes of {function.name}")
        for identifier in [key for key in model.functions if key[0] == DOMAIN]:
            del model.functions[identifier]
            yield Change("remove", identifier[1], "function is no longer called")
        drop_unused_domains(model, [DOMAIN])
