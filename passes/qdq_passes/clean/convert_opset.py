"""convert-opset"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import onnx
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.clean.edit.wrap import quiet
from qdq_passes.core.base import Change, Keeps, Pass
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.edit import Namer, copy_model, inherit
from qdq_passes.graph.foreign import files_apart
from qdq_passes.graph.uses import all_nodes, all_values, is_standard, label

#: Oldest IR version that may import each default-domain opset, from onnx's release table (docs/Versioning.md).
IR_OF_OPSET = {15: 8, 19: 9, 21: 10, 23: 11, 24: 12, 25: 12, 26: 13, 27: 13, 28: 14}
#: What may be done about operators that onnxruntime has in onnx's own domain, and onnx has not.
WAYS_OUT = {
    "SimplifiedLayerNormalization": "write it in operators of onnx first: `qdqtool opt -p decompose-simplified-layer-norm`",
}


@dataclass(frozen=True)
class ConvertOpset(Pass):
    """Convert the default-domain opset to ``version``, and the IR version along with it where the opset demands a newer one.

    Graph: operators are replaced by their form in the new opset (axes attributes become inputs, …); functions are inlined.
    Requires: a converter exists for every operator in use, in onnxscript (upwards from 18) or in onnx.
    Keeps: inputs, outputs and their names, types and shapes; scopes; numerics bit-exact where the operators' definitions are.
    Skips: a model that already has the opset. A model that cannot be converted is refused and stays as it is.

    Args:
        version: the opset.
        at_least: a newer one is left as it is.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="an operator's definition may differ between opsets")
    version: int = 21
    at_least: bool = False

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Convert a copy; install it when it has the opset and the same inputs and outputs."""
        before = model.opset_imports.get("", self.version)
        if before == self.version or (self.at_least and before > self.version):
            return
        from onnxscript.version_converter import ConvertVersionPass

        copy = copy_model(model)
        try:
            with files_apart(copy), quiet("onnxscript"):  # what it could not do is checked below
                ConvertVersionPass(self.version, fallback=True)(copy)
        except Exception as error:
            raise self._refusal(before, model, " ".join(str(error).split())[:160]) from error
        if copy.opset_imports.get("") != self.version:
            raise self._refusal(before, model, "an operator has none")
        if not _keeps_ends(model, copy):
            raise self._refusal(before, model, "the converter changes its inputs or outputs")
        old = {node.name: node for node in all_nodes(model)}
        _put_back(model, copy)
        for declared, end in zip(_ends(model), _ends(copy), strict=True):
            end.shape = declared.shape if declared.shape is not None else end.shape
        model.graph = copy.graph
        model.functions.clear()
        model.functions.update(copy.functions)
        needed = max((ir_version for opset, ir_version in IR_OF_OPSET.items() if opset <= self.version), default=3)
        model.ir_version = max(model.ir_version or 0, needed)
        yield Change("edit", "opset", f"{before} → {self.version}, IR {model.ir_version}")
        for node in all_nodes(model):
            was = old.pop(node.name, None)
            if was is None:
                yield Change("insert", label(node), f"opset {self.version}")
            elif (was.op_type, list(was.attributes), len(was.inputs)) != (
                node.op_type, list(node.attributes), len(node.inputs)
            ):  # fmt: skip
                yield Change("edit", label(node), f"opset {self.version}")
        for name in old:
            yield Change("remove", name or "", f"opset {self.version}")

    def _refusal(self, before: int, model: ir.Model, why: str) -> UnsupportedError:
        unknown = [n for n in all_nodes(model) if is_standard(n, n.op_type) and not onnx.defs.has(n.op_type)]
        if unknown:
            op = unknown[0].op_type
            return UnsupportedError(
                f"{op} is no operator of onnx, so that no converter takes it from opset {before} to {self.version}",
                where=unknown[0].name or op,
                hint=WAYS_OUT.get(op, "export the model again without it, or in a domain of its own"),
            )
        return UnsupportedError(
            f"no converter from opset {before} to {self.version} for this model: {why}",
            where=model.graph.name,
            hint="export the model again with the opset you need",
        )


def _keeps_ends(old: ir.Model, new: ir.Model) -> bool:
    """Whether inputs and outputs have the names, types and shapes that they had, as far as those were known.

    onnx's converter infers shapes as it goes: it may know the number that a symbolic size of an output stands for."""
    before, after = _ends(old), _ends(new)
    return len(before) == len(after) and all(
        was.name == now.name
        and (was.type is None or was.type == now.type)
        and (was.shape is None or _is_as_precise(now.shape, was.shape))
        for was, now in zip(before, after, strict=True)
    )


def _ends(model: ir.Model) -> list[ir.Value]:
    return [*model.graph.inputs, *model.graph.outputs]


def _is_as_precise(now: ir.Shape | None, was: ir.Shape) -> bool:
    """Whether ``now`` says all that ``was`` says; it may have numbers in place of symbolic sizes, names in place of none."""
    return (
        now is not None
        and len(now) == len(was)
        and all(
            str(mine) == str(theirs)
            or (isinstance(theirs, ir.SymbolicDim) and (isinstance(mine, int) or theirs.value is None))
            for mine, theirs in zip(now, was, strict=True)
        )
    )


def _put_back(old: ir.Model, new: ir.Model) -> None:
    """Names for nodes the converters made; metadata and annotations by name (onnx's converter drops them)."""
    namer = Namer(new)
    nodes = {node.name: node for node in all_nodes(old)}
    values = {value.name: value for value in all_values(old)}
    for node in all_nodes(new):
        if not node.name:
            node.name = namer.fresh(f"{node.op_type}_{node.outputs[0].name}" if node.outputs else node.op_type)
        _copy_notes(nodes.get(node.name), node)
    for node in all_nodes(new):
        if node.name not in nodes:
            inherit(node, [user for value in node.outputs for user in value.consumers()][:1])
    for value in all_values(new):
        _copy_notes(values.get(value.name), value)


def _copy_notes(old: ir.Node | ir.Value | None, new: ir.Node | ir.Value) -> None:
    if old is not None:
        for key, text in old.metadata_props.items():
            new.metadata_props.setdefault(key, text)
        for meta_key, note in old.meta.items():
            new.meta.setdefault(meta_key, note)
