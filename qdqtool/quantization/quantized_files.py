"""Files that are quantized already: what they hold, and the command that makes of them what another command takes."""

from __future__ import annotations

import os
import shlex

import onnx_ir as ir
from qdq_passes.graph.operators.qoperators import form_of
from qdq_passes.graph.uses import all_nodes
from qdq_passes.qdq.look.pairs import qdq_pairs

#: Where the commands that are advised write.
PAIRS, FLOAT = "pairs.onnx", "float.onnx"


def integer_operators(model: ir.Model) -> int:
    """Count the operators of ``model`` on integers that have forms on floats (QLinearConv, QGemm…)."""
    return sum(form_of(node) is not None for node in all_nodes(model))


def refusal_without_pairs(model: ir.Model, file: str | os.PathLike[str]) -> tuple[str, str]:
    """Return the message and the hint for ``model``, which has no pairs where a command needs some."""
    if count := integer_operators(model):
        return (
            f"has no QDQ pairs but {_counted(count, 'operator')} on integers",
            f"make pairs of them first: `qdqtool qdq convert {shlex.quote(os.fspath(file))} --qoperators -o {PAIRS}`",
        )
    return "has no QDQ pairs", f"quantize it: {way_to_pairs(file)}"


def way_to_pairs(file: str | os.PathLike[str], target: str | None = None) -> str:
    """Return the command, in backticks, that quantizes the float model ``file``."""
    options = () if target is None else ("--target", target)
    return f"`{shlex.join(['qdqtool', 'quantize', os.fspath(file), *options, '--data', 'DATA', '-o', PAIRS])}`"


def existing_quantization(model: ir.Model) -> str:
    """Return ``74 QDQ pairs`` of a model whose activations are quantized already, or ``29 operators on integers``; else ""."""
    pairs = qdq_pairs(model)
    counts = ((len(pairs) if any(pair.kind == "activation" for pair in pairs) else 0, "QDQ pair", ""),
              (integer_operators(model), "operator", " on integers"))  # fmt: skip
    return " and ".join(f"{_counted(count, what)}{more}" for count, what, more in counts if count)


def way_to_floats(file: str | os.PathLike[str]) -> str:
    """Return the hint with the command that makes a float model of the quantized ``file``."""
    return f"make a float model of it first: `qdqtool qdq remove {shlex.quote(os.fspath(file))} --all -o {FLOAT}`"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
