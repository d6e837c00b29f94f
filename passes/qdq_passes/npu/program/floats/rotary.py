"""Plans in floating point of RotaryEmbedding: the pairs of numbers apart, six operations on them, and together again."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qdq_passes.npu.program.floats.steps import Constant, Handlers, Made, Source, Steps, type_of
from qdq_passes.npu.program.heads import CONTRIB, angles_at, heads_of
from qdq_passes.npu.program.operands import NotComputable


def _rotary(steps: Steps, node: ir.Node) -> list[Source]:
    if steps.opset < 13:
        raise NotComputable(f"RotaryEmbedding in a model of opset {steps.opset} has no kernel; run convert-opset")
    cosines, sines, _ = angles_at(node)
    dtype, heads = type_of(node), heads_of(node, steps.operand(node, 0), steps.operand(node, cosines))
    outer = [heads.length, heads.count] if heads.is_flat else [heads.count, heads.length]
    size, rotated, axis = heads.size, heads.rotated, 2 if heads.is_flat else 1

    def reshaped(value: Source, *inner: int, what: str) -> Made:
        laid = np.array([-1, *outer, *inner], np.int64)
        return steps.move("Reshape", value, Constant(what, lambda: laid, ir.DataType.INT64), dtype=dtype)[0]

    def split(value: Source, *parts: int) -> list[Made]:
        wanted = [part for part in parts if part]
        if len(wanted) == 1 and isinstance(value, Made):
            return [value]
        lengths = Constant(f"parts_{len(parts)}", lambda: np.array(wanted, np.int64), ir.DataType.INT64)
        return steps.move("Split", value, lengths, dtype=dtype, attributes={"axis": -1}, count=len(wanted))

    def angle(index: int) -> Made:
        value = steps.rounded(node, index)
        rows = heads.rows
        places: Source = heads.positions
        if rows is not None:
            places = Constant("rows", lambda: rows[None], ir.DataType.INT64)
        if places is not None:
            value = steps.move("Gather", value, places, dtype=dtype, attributes={"axis": 0})[0]
        at = Constant(f"axis_{index}", lambda: np.array([axis], np.int64), ir.DataType.INT64)
        return steps.move("Unsqueeze", value, at, dtype=dtype)[0]

    def both(word: str, a: Source, b: Source) -> Made:
        return steps.step("FloatElementwise", a, b, dtype=dtype, attributes={"function": word})

    def joined(*parts: Made) -> Made:
        attributes = {"axis": -1}
        return steps.move("Concat", *parts, dtype=dtype, attributes=attributes)[0] if len(parts) > 1 else parts[0]

    data = reshaped(steps.rounded(node, 0), size, what="heads")
    if heads.is_interleaved:
        turned, *rest = split(data, rotated, size - rotated)
        pairs = split(reshaped(turned, rotated // 2, 2, what="pairs"), 1, 1)
        first, second = (reshaped(part, rotated // 2, what=f"half_{i}") for i, part in enumerate(pairs))
    else:
        first, second, *rest = split(data, rotated // 2, rotated // 2, size - rotated)
    c, s = angle(cosines), angle(sines)
    y1 = both("Sub", both("Mul", first, c), both("Mul", second, s))
    y2 = both("Add", both("Mul", second, c), both("Mul", first, s))
    if heads.is_interleaved:
        apart = [reshaped(y, rotated // 2, 1, what=f"apart_{i}") for i, y in enumerate((y1, y2))]
        found = joined(reshaped(joined(*apart), rotated, what="together"), *rest)
    else:
        found = joined(y1, y2, *rest)
    ends = np.array([-1, heads.length, heads.count * size] if heads.is_flat else [-1, *outer, size], np.int64)
    return [steps.move("Reshape", found, Constant("shape", lambda: ends, ir.DataType.INT64), dtype=dtype)[0]]


#: RotaryEmbedding of onnx and of com.microsoft.
ROTARY: Handlers = {(domain, "RotaryEmbedding"): _rotary for domain in ("", CONTRIB)}
