"""The commands that mend the encodings of one unit, with the names and numbers of that unit."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
from qdq_passes.npu.units.units import Unit
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.qdq.look.pairs import pair_of


def selected(name: str | None) -> str:
    """The option that selects the pair on a value: ``--select tensor:x``."""
    return f"--select {shlex.quote('tensor:' + (name or ''))}"


def options_of(encoding: Encoding | None) -> str:
    """The options that give a pair ``encoding``, with a space before; empty where it is not known."""
    if encoding is None:
        return ""
    scales = "".join(f" --scale {np.float32(scale)!s}" for scale in encoding.scale)
    zeros = "".join(f" --zero-point {zero}" for zero in encoding.zero_point)
    return f"{scales}{zeros if any(encoding.zero_point) else ''} --dtype {encoding.dtype.name.lower()}"


def types_alike(unit: Unit) -> str:
    """What stores all that ``unit`` reads and writes in the type of its first activation, or, where widths differ, in the widest;
    empty where it is so."""
    halves = [*_read(unit), *_written(unit)]
    wanted = next((encoding.dtype for _, encoding in halves), None)
    others = [name for name, encoding in halves if encoding.dtype != wanted]
    if wanted is None or not others:
        return ""
    pairs = " ".join(selected(name) for name in dict.fromkeys(others))
    told = (
        f"store all that it reads and writes in one type: `qdqtool qdq convert {pairs} --dtype {wanted.name.lower()}`"
    )
    mixed = len({encoding.dtype.bitwidth for _, encoding in halves}) > 1
    return f"{told}; or all operators in the widest of theirs: `qdqtool opt -p unify-widths`" if mixed else told


def encodings_alike(unit: Unit) -> str:
    """What gives the results of ``unit`` the encoding of its first input."""
    have = next((encoding for _, encoding in _read(unit)), None)
    pairs = " ".join(selected(name) for name, _ in _written(unit))
    return f"give input and output one encoding: `qdqtool qdq set {pairs}{options_of(have)}`"


def pair_before_tail(unit: Unit) -> str:
    """What puts a pair between an operator and what is computed in the same step behind it; empty without such."""
    if not unit.tail:
        return ""
    between = unit.tail[0].inputs[0]
    encoding = next((encoding for _, encoding in _written(unit)), None)
    options = options_of(encoding) or " --ranges R.json"
    insert = f"`qdqtool qdq insert {selected(between.name if between is not None else None)}{options}`"
    return f"put a pair between them, with the encoding of the one behind: {insert}"


def _read(unit: Unit) -> Iterator[tuple[str | None, Encoding]]:
    """(name of the pair, encoding) of what flows in, then of constants; weights and biases aside."""
    for kind in ("activation", "constant"):
        for operand in unit.operands:
            if operand.kind == kind and operand.encoding is not None and operand.dequantize is not None:
                pair = pair_of(operand.dequantize)
                name = operand.value.name if operand.value is not None else None
                yield pair.tensor if pair is not None else name, operand.encoding


def _written(unit: Unit) -> Iterator[tuple[str | None, Encoding]]:
    for result in unit.results:
        if result.encoding is not None:
            yield result.value.name, result.encoding


def first_value(unit: Unit) -> ir.Value | None:
    """What ``unit`` reads of data that are computed; None where it reads none."""
    for operand in unit.operands:
        value = operand.value
        if value is not None and value.producer() is not None and operand.kind != "control" and not operand.constant:
            return value
    return None
