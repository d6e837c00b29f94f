"""IR and opset of the models we make, and which onnxruntime releases load which."""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

#: IR version of models we make: the first with int4, opset 21's blocked scales and types of values inside functions.
IR_VERSION = 10
#: Opset of models we make: the first with 16-bit, 4-bit and blocked QuantizeLinear in the default domain.
#: Both are inside what onnxruntime 1.23, the oldest release we support, loads; onnx's own defaults (IR 14 and opset 28 in
#: onnx 1.23.2) are refused by every onnxruntime before 1.32, which has no QuantizeLinear of that opset either.
OPSET = 21


class Release(NamedTuple):
    """What one onnxruntime release loads at most."""

    version: str
    ir_version: int
    opset: int
    ml_opset: int


#: Measured: a model of one Identity (ai.onnx.ml: Normalizer) per IR version 8..15, opset 19..29 and ml opset 1..6 was opened on
#: 1.23.0, 1.23.2, 1.24.4, 1.25.1, 1.26.0, 1.27.0, 1.28.0, 1.29.0, 1.30.0, 1.31.1 and 1.32.0. Only releases where that
#: changed.
RELEASES = (
    Release("1.23", 11, 23, 5),
    Release("1.24", 13, 25, 5),
    Release("1.25", 13, 26, 5),
    Release("1.32", 14, 28, 5),
)
#: Newest release that was tried.
NEWEST_TRIED = "1.32.0"


def loadable_in(model: ir.Model) -> str:
    """Which onnxruntime releases accept the model's IR and opset versions: ``">=1.23"``, or ``"none up to 1.32.0"``.

    Operators that a release has no kernel for are another matter: `qdqtool check` asks the installed onnxruntime.
    """
    opset = model.opset_imports.get("", 0)
    ml_opset = model.opset_imports.get("ai.onnx.ml", 0)
    for release in RELEASES:
        if model.ir_version <= release.ir_version and opset <= release.opset and ml_opset <= release.ml_opset:
            return f">={release.version}"
    return f"none up to {NEWEST_TRIED}"
