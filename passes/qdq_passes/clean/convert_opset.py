"""convert-opset"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from qdq_passes.core.base import Change, Keeps, Pass
from qdq_passes.core.wrap import changes_of
from qdq_passes.errors import UnsupportedError

#: Oldest IR version that may import each default-domain opset, from onnx's release table (docs/Versioning.md).
IR_OF_OPSET = {15: 8, 19: 9, 21: 10, 23: 11, 24: 12, 25: 12, 26: 13, 27: 13, 28: 14}


@dataclass(frozen=True)
class ConvertOpset(Pass):
    """Convert the default-domain opset to ``version``, and the IR version along with it where the opset demands a newer one.

    Graph: operators are replaced by their form in the new opset (axes attributes become inputs, …); functions are inlined.
    Requires: a converter exists for every operator in use, in onnxscript (upwards from 18) or in onnx.
    Keeps: inputs, outputs and their names; numerics bit-exact where the operators' definitions are.
    Skips: a model that already has the opset.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="an operator's definition may differ between opsets")
    version: int = 21

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Run onnxscript's converter with onnx's as fallback; refuse when neither reaches the version."""
        if model.opset_imports.get("", self.version) == self.version:
            return
        from onnxscript.version_converter import ConvertVersionPass

        before = model.opset_imports[""]
        changes = list(
            changes_of(model, _quietly(ConvertVersionPass(self.version, fallback=True)), f"opset {self.version}")
        )
        if model.opset_imports.get("") != self.version:
            raise UnsupportedError(
                f"no converter from opset {before} to {self.version} for this model",
                where=model.graph.name,
                hint="export the model again with the opset you need",
            )
        needed = max((ir_version for opset, ir_version in IR_OF_OPSET.items() if opset <= self.version), default=3)
        model.ir_version = max(model.ir_version or 0, needed)
        yield from changes
        yield Change("edit", "opset", f"{before} → {self.version}, IR {model.ir_version}")


def _quietly(conversion: ir.passes.PassBase) -> ir.passes.PassBase:
    """The converters log what they cannot do and go on; `ConvertOpset` checks the result itself."""
    logging.getLogger("onnxscript").setLevel(logging.ERROR)
    return conversion
