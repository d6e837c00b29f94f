"""convert-qdq-domain"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import EXACT, Change, Keeps, Pass, skip
from qdq_passes.graph.edit import Namer, drop_unused_domains
from qdq_passes.graph.operators.qdq_ops import imports_at, is_quantize_dequantize
from qdq_passes.qdq.edit.domains import (
    expand,
    fuse,
    move,
    refuse_disorder,
    refuse_domain,
    refuse_expansion,
    why_not_fixed,
)
from qdq_passes.qdq.edit.reencode import nodes_of, targets
from qdq_passes.qdq.look.pairs import Half, Pair, encoding_of
from qdq_passes.select.selectors import ALL, Selector

VITIS = "com.vai.quantize"


@dataclass(frozen=True)
class ConvertQdqDomain(Pass):
    """Write pairs with the operators of another domain: the standard ones, onnxruntime's, a vendor's, or as FixNeuron.

    Graph: ``t → Q → DQ`` of one domain → the same of another; with ``fix-neuron`` a pair of scale 2^-p on b bits →
    ``FixNeuron(bit_width=b, pos=p)``, stored integers becoming the float weight before it; other targets take a FixNeuron apart.
    Requires: the domain (for ``onnx``, the opset) knows the types; it is imported, and those that nothing uses any more are not.
    Keeps: names of inputs and outputs; numerics bit-exact.
    Skips: for ``fix-neuron`` what is not symmetric, per-tensor, signed, a power of two and float32; block floats, which round
    without an integer grid.

    Args:
        to: ``onnx`` (QuantizeLinear), ``com.microsoft`` (likewise; 4 and 16 bits at any opset, no blocks), ``com.vai.quantize``
            (VitisQuantizeLinear), ``com.amd.quark`` (ExtendedQuantizeLinear), ``fix-neuron`` (of com.vai.quantize).
        select: pairs, by their float value or by their nodes.
    """

    keeps: ClassVar[Keeps] = EXACT
    to: Literal["onnx", "com.microsoft", "com.vai.quantize", "com.amd.quark", "fix-neuron"] = "onnx"
    select: Selector = ALL

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Refuse first, then write."""
        found = targets(model, self.select)
        left = {node.domain for target in found for node in nodes_of(target)} - {"", "ai.onnx"}
        if self.to == "fix-neuron":
            yield from self._fuse(model, found)
        else:
            yield from self._move(model, found, "" if self.to == "onnx" else self.to)
        yield from drop_unused_domains(model, left)

    def _fuse(self, model: ir.Model, found: list[Pair | Half]) -> Iterator[Change]:
        work: list[Pair] = []
        for target in found:
            if isinstance(target, Pair) and target.q is target.dq:
                continue
            reason = why_not_fixed(target)
            if isinstance(target, Half) or reason is not None:
                yield skip(target.tensor, reason or "is half a pair")
            else:
                work.append(target)
        refuse_disorder(work)
        namer = Namer(model)
        for pair in work:
            imports_at(model, pair.dq).setdefault(VITIS, 1)
            model.opset_imports.setdefault(VITIS, 1)
            yield from fuse(pair, namer)

    def _move(self, model: ir.Model, found: list[Pair | Half], domain: str) -> Iterator[Change]:
        work: list[Pair | Half] = []
        for target in found:
            node = target.node if isinstance(target, Half) else target.dq
            if is_quantize_dequantize(node) and encoding_of(node) is None:
                yield skip(target.tensor, f"{node.op_type} has no integer grid of constant scale")
            elif any(_is_elsewhere(one, domain) for one in nodes_of(target)):
                (refuse_expansion if is_quantize_dequantize(node) else refuse_domain)(model, target, domain)
                work.append(target)
        refuse_disorder(one for one in work if isinstance(one, Pair) and one.q is one.dq)
        namer = Namer(model)
        for target in work:
            for node in [n for n in nodes_of(target) if _is_elsewhere(n, domain)]:
                if domain:
                    imports_at(model, node).setdefault(domain, 1)
                    model.opset_imports.setdefault(domain, 1)
                yield (
                    expand(node, domain, namer) if is_quantize_dequantize(node) else move(model, node, domain, namer)
                )


def _is_elsewhere(node: ir.Node, domain: str) -> bool:
    return is_quantize_dequantize(node) or ("" if node.domain == "ai.onnx" else node.domain) != domain
