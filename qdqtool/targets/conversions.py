"""The commands that bring encodings to what a scheme takes."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from qdqtool.targets.remedies import anew
from qdqtool.targets.rules import Complaint, Operand, Scheme

_KINDS: dict[Operand, str] = {"activations": "activation", "weights": "weight"}


def conversions(complaints: Iterable[Complaint], scheme: Scheme, target: str) -> str:
    """Of encodings that ``scheme``, the nearest, does not take: the commands that bring them there."""
    found = list(complaints)
    if any(c.what == "refused" for c in found):
        return f"nothing in qdqtool mends it here; {anew(target)}"
    each = {operand: _conversion(operand, found, scheme) for operand in _KINDS}
    bias = _bias(found, scheme)
    commands = [f"qdqtool qdq convert {options} --kinds {_KINDS[o]}" for o, options in each.items() if options]
    if each["activations"] == each["weights"] and commands:
        commands = [f"qdqtool qdq convert {each['weights']}"]
    if bias:
        commands = [*commands[:-1], (commands[-1] if commands else "qdqtool qdq convert") + bias]
    if any(c.what == "scale" for c in found):
        commands.append("qdqtool qdq set --all --round-pow2")
    steps = ", then ".join(f"`{command}`" for command in commands)
    return f"convert the encodings: {steps}; or {anew(target)}" if steps else anew(target)


def _conversion(operand: Operand, complaints: list[Complaint], scheme: Scheme) -> str:
    """Options of `qdq convert` that bring ``operand`` to ``scheme``; empty when it is there."""
    own = {complaint.what: complaint for complaint in complaints if complaint.operand == operand}
    options = []
    if "type" in own:
        options.append(f"--dtype {_nearest(own['type'].dtype, scheme.types(operand)).name.lower()}")
    if "zero-point" in own or ("type" in own and operand in scheme.symmetric):
        options.append("--symmetric")
    if "granularity" in own:
        options.append(
            "--per-tensor" if operand == "activations" or "per-tensor" in scheme.granularity else "--per-axis"
        )
    return " ".join(options)


def _nearest(dtype: ir.DataType | None, types: tuple[ir.DataType, ...]) -> ir.DataType:
    """Of the same sign if there is one, the first else."""
    signed = dtype is not None and not dtype.name.startswith("U")
    return next((t for t in types if t.name.startswith("U") != signed and t.name.startswith(("U", "INT"))), types[0])


def _bias(complaints: list[Complaint], scheme: Scheme) -> str:
    if not any(c.operand == "bias" and c.what in ("type", "zero-point", "float") for c in complaints):
        return ""
    wide = ir.DataType.INT32 in scheme.bias
    return f" --bias {'int32' if wide else 'int8'}" if wide or ir.DataType.INT8 in scheme.bias else ""
