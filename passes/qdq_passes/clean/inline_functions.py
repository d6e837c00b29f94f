"""inline-functions"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import ClassVar

import onnx_ir as ir
from onnx import defs
from onnx_ir.passes import common

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.clean.edit.wrap import changes_of, remove_unused_functions
from qdq_passes.core.base import EXACT, Change, Keeps, Pass
from qdq_passes.errors import ModelError, UnsupportedError
from qdq_passes.graph.nesting import NAME_SCOPES, NAMESPACE, SCOPE, scope_of
from qdq_passes.graph.uses import all_nodes, bodies_of, is_standard, label, with_bodies

#: Set on calls while they are inlined: onnx_ir copies a call's metadata to the nodes of its body.
_CALL = "qdqtool.call"
_OPTIONAL = defs.OpSchema.FormalParameterOption.Optional


@dataclass(frozen=True)
class InlineFunctions(Pass):
    """Replace every call of a local function by the function's body, and drop the functions.

    Graph: ``y = local::Block(x)`` → ``t = Conv(x, w); y = Relu(t)``, with scope ``<scope of the call>.<name of the call>``.
    Requires: no function that calls itself.
    Keeps: inputs, outputs and their names; numerics bit-exact.
    Skips: models without local functions.
    """

    keeps: ClassVar[Keeps] = EXACT

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Inline from the outermost calls inwards; scopes nest as the calls do."""
        if model.functions:
            yield from changes_of(model, _inline_all, "inlined")


def _refuse_other_opsets(model: ir.Model) -> None:
    """onnx_ir converts no nodes between operator sets."""
    for function in model.functions.values():
        for domain, version in function.opset_imports.items():
            outer = model.opset_imports.get(domain, version)
            if outer != version:
                message = f"is written for opset {version} of domain {domain!r}, the model for {outer}"
                hint = "functions of another opset cannot be inlined: export the model again"
                raise UnsupportedError(message, where=f"function {function.domain}::{function.name}", hint=hint)


def _inline_all(model: ir.Model) -> None:
    _refuse_other_opsets(model)
    remove_unused_functions(model)  # the library would write out those, too
    for node in all_nodes(model):
        if node.op_identifier() in model.functions:
            name = [part for part in (node.name or "").split("/") if part]
            node.metadata_props[_CALL] = _join(scope_of(node), *name[-1:])
            node.metadata_props.pop(SCOPE, None)
    _Inliner()(model)  # refuses a cycle
    common.RemoveUnusedOpsetsPass()(model)


class _Inliner(common.InlinePass):
    """onnx_ir's pass in linear time, which gives the nodes of a body the scope of the call before their own."""

    def _reset(self, model: ir.Model) -> None:
        """Make the short names of functions that calls without a name get; onnx_ir compares each with all."""
        super()._reset(ir.Model(model.graph, ir_version=model.ir_version or 0))
        self._functions = model.functions
        count = Counter(identifier[1:] for identifier in model.functions)
        self._function_id_abbreviations = {
            identifier: "_".join(part for part in identifier[count[identifier[1:]] == 1 :] if part)
            for identifier in model.functions
        }

    def _instantiate_call(self, node: ir.Node, call_site_id: str) -> tuple[Sequence[ir.Node], Sequence[ir.Value]]:
        call = node.metadata_props.pop(_CALL)
        nodes, values = super()._instantiate_call(node, call_site_id)
        opset = self._opset_imports.get("", 0)
        bodies = [graph for each in nodes for body in bodies_of(each) for graph in with_bodies(body)]
        for each in [*nodes, *(inner for graph in bodies for inner in graph)]:
            _refuse_left_out(each, opset)
            if _CALL in each.metadata_props:
                each.metadata_props[_CALL] = _join(call, each.metadata_props[_CALL])
            elif SCOPE in each.metadata_props or not _has_exported_scope(each):
                each.metadata_props[SCOPE] = _join(call, each.metadata_props.get(SCOPE, ""))
        return nodes, values


def _refuse_left_out(node: ir.Node, opset: int) -> None:
    """Refuse a node of a body whose last inputs a call left out, where the operator needs them."""
    if is_standard(node, node.op_type) and defs.has(node.op_type, opset):
        schema = defs.get_schema(node.op_type, opset)
        count = max((place + 1 for place, value in enumerate(node.inputs) if value is not None), default=0)
        if any(
            formal.option != _OPTIONAL for formal in schema.inputs[count : schema.min_input]
        ):  # a Loop's may be left out
            message = "needs an input of its function that the call leaves out"
            raise ModelError(message, where=label(node), hint="export the model again")


def _has_exported_scope(node: ir.Node) -> bool:
    return NAME_SCOPES in node.metadata_props or NAMESPACE in node.metadata_props


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)
