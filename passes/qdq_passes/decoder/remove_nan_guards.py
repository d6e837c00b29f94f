"""remove-nan-guards

A softmax of finite numbers is finite: exp(s - max) lies in (0, 1] and their sum is at least 1.

Guards against rows of NaN behind a Softmax, and when none can be there.

softmax(s + m) has a row of NaN where every s + m of the row is -inf, or one is NaN. With finite scores s and a finite mask m the
sums are finite as well: in float32 and bfloat16 the rounding of m + s reaches infinity only for |s| ≥ 2^102 ≈ 5·10^30, as the
largest number is (2 - 2^-23)·2^127. In float16, whose lowest number -65504 is a mask, s < -16 suffices: there each row needs a
key that is seen."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.errors import UnsupportedError
from qdq_passes.graph.edit import Namer, bypass, drop_unread, remove
from qdq_passes.graph.operators.kinds import MOVERS, kind_of
from qdq_passes.graph.sizes import rank_of, rank_or
from qdq_passes.graph.uses import FLOAT_TYPES, constant_array, dtype_of, integer_of, is_standard, main_nodes


@dataclass(frozen=True)
class RemoveNanGuards(Pass):
    """Remove what turns rows of NaN behind a Softmax into zeros, where no row can be NaN.

    Graph: ``Softmax → p → IsNaN → Where(·, 0, p)`` → ``Softmax → p``.
    Requires: finite scores (below 5·10^30 in float32). Masks that are inputs hold what `replace-attention-mask` says, 0 and -1e9
    (in float16 -2^15); in float16 each query sees a key, itself, where the cache is updated in place.
    Keeps: inputs, outputs and their names; numerics bit-exact for finite scores.
    Skips: masks that may be infinite; in float16 caches that slide, whose rows of padding see no key.
    """

    keeps: ClassVar[Keeps] = Keeps("exact", why="no row is NaN where scores are finite")

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Guard by guard."""
        guards = [guard for node in main_nodes(model) if (guard := nan_guard(node)) is not None]
        if not guards:
            return
        masks, sees_itself = _masks(model)
        namer = Namer(model)
        for guard in guards:
            reason = why_nan(guard.softmax, masks, sees_itself=sees_itself)
            if reason:
                yield skip(guard.where, reason)
                continue
            parameters = list(guard.where.inputs)
            tests = [user for user in guard.source.consumers() if user.op_type == "IsNaN"]
            yield bypass(guard.where, namer, "no row is NaN", source=guard.source)
            for test in tests:
                if not test.outputs[0].uses() and not test.outputs[0].is_graph_output():
                    yield from remove(test, "nobody asks")
            yield from drop_unread(parameters)


def _masks(model: ir.Model) -> tuple[frozenset[ir.Value], bool]:
    """Inputs that are masks by the names that `replace-attention-mask` gives; whether each query sees itself."""
    from qdq_passes.decoder.edit.masks import MASK
    from qdq_passes.decoder.edit.static import IN_PLACE
    from qdq_passes.decoder.look.io import DecoderIo, decoder_io

    name = re.compile(rf"{MASK}(_w\d+)?")
    found = frozenset(
        v for v in model.graph.inputs
        if name.fullmatch(v.name or "") and v.dtype in FLOAT_TYPES and rank_of(v) == 4
    )  # fmt: skip
    try:
        io: DecoderIo | None = decoder_io(model)
    except UnsupportedError:
        io = None
    return found, io is not None and all(pair.update.op_type in IN_PLACE for pair in io.pairs)


#: Elements of a constant mask up to which it is read.
READ = 1 << 24
#: Largest number of float32.
LARGEST = 3.4028234663852886e38
#: Change a score without making a finite one infinite, as far as scores of attentions go.
_KEPT = MOVERS | {"Cast", "Identity", "Tanh", "Clip", "QuantizeLinear", "DequantizeLinear"}
_SCALED = frozenset({"Div", "Mul"})


@dataclass(frozen=True)
class Guard:
    """Where(IsNaN(x), 0, x) behind a Softmax.

    Args:
        where: the Where.
        source: x.
        softmax: the Softmax.
    """

    where: ir.Node
    source: ir.Value
    softmax: ir.Node


def nan_guard(node: ir.Node) -> Guard | None:
    """The guard that ``node``, a Where, is; None where it is none."""
    condition, zero, source = (
        node.inputs if is_standard(node, "Where") and len(node.inputs) == 3 else (None, None, None)
    )
    test = condition.producer() if condition is not None else None
    if test is None or source is None or not is_standard(test, "IsNaN") or test.inputs[0] is not source:
        return None
    array = constant_array(zero)
    softmax = source.producer()
    while softmax is not None and kind_of(softmax) in ("Cast", "Identity", "Dropout") and softmax.inputs[0] is not None:
        softmax = softmax.inputs[0].producer()
    if array is None or array.any() or softmax is None or not is_standard(softmax, "Softmax"):
        return None
    if array.size != 1 or array.ndim > rank_or(source, 1):  # it lends the result its dimensions
        return None
    return Guard(node, source, softmax)


def why_nan(softmax: ir.Node, masks: frozenset[ir.Value], *, sees_itself: bool) -> str:
    """Why a row of ``softmax`` may be NaN although its scores are finite; empty where none can be.

    Args:
        softmax: the node.
        masks: inputs that hold 0 and a finite number alone.
        sees_itself: every query sees a key, by how those are made.
    """
    value, half, gain = softmax.inputs[0], False, 1.0
    while value is not None:
        node = value.producer()
        half = half or dtype_of(value) == ir.DataType.FLOAT16
        kind = "" if node is None else kind_of(node)
        if node is None or kind in ("MatMul", "Einsum", "Gemm"):
            return "" if node is not None else f"{value.name} is no product of queries and keys"
        operands = [v for v in node.inputs if v is not None]
        if kind in _KEPT:
            value = operands[0]
        elif kind in _SCALED and len(operands) == 2:
            scale, value = _scale(kind, operands)
            if scale is None:
                return f"{node.name} scales by what is not known"
            gain *= scale
        elif kind in ("Add", "Sub") and len(operands) == 2:
            mask = next((v for v in reversed(operands) if _largest(v, masks) is not None), None)
            if mask is None or (_largest(mask, masks) or 0.0) * max(gain, 1.0) > LARGEST:
                return f"what {node.name} adds may be infinite"
            if half and not (sees_itself and _is_input(mask, masks)):
                return "all keys of a query may be hidden, which in float16 may come to minus infinity"
            value = operands[0] if mask is operands[1] else operands[1]
        elif kind == "Where" and len(operands) == 3:
            finite = [v for v in operands[1:] if _largest(v, masks) is not None]
            if len(finite) != 1:
                return f"what {node.name} puts in place of scores may be infinite"
            value = operands[1] if finite[0] is operands[2] else operands[2]
        else:
            return f"{node.name}, a {node.op_type}, stands between the Softmax and its product"
    return "its scores are missing"


def _scale(kind: str, operands: list[ir.Value]) -> tuple[float | None, ir.Value]:
    """By how much at most a product or quotient makes scores larger, and the scores."""
    if kind == "Div":
        array = constant_array(operands[1])
        smallest = float(np.abs(array.astype(np.float64)).min()) if array is not None and array.size else 0.0
        return (1 / smallest if smallest else None), operands[0]
    for factor, scores in (operands[::-1], operands):
        found = _largest(factor, frozenset())
        if found is not None:
            return found, scores
    return None, operands[0]


def _is_input(mask: ir.Value, masks: frozenset[ir.Value]) -> bool:
    """Whether ``mask`` is one of ``masks``, moved at most."""
    value: ir.Value | None = mask
    while value is not None and value not in masks:
        node = value.producer()
        value = node.inputs[0] if node is not None and kind_of(node) in MOVERS | {"Identity"} else None
    return value is not None


def _largest(value: ir.Value, masks: frozenset[ir.Value], depth: int = 12) -> float | None:
    """Largest magnitude of ``value``, finite in its type; None where that is not known."""
    if value in masks:
        return 1e9
    dtype = dtype_of(value)
    if dtype == ir.DataType.BOOL:
        return 1.0
    if value.const_value is not None and value.const_value.size > READ:
        return None
    array = constant_array(value)
    if array is not None:
        if array.dtype.kind not in "biuf" or not array.size:
            return None
        found: float | None = float(np.abs(array.astype(np.float64)).max())
    else:
        found = _computed(value, masks, depth)
    limit = 65504.0 if dtype == ir.DataType.FLOAT16 else LARGEST
    return found if found is not None and found <= limit else None


def _computed(value: ir.Value, masks: frozenset[ir.Value], depth: int) -> float | None:
    node = value.producer()
    if node is None or not depth:
        return None
    kind, operands = kind_of(node), [v for v in node.inputs if v is not None]
    if kind in MOVERS | {"Identity", "Cast", "Gather"} and integer_of(node, "to", 1):
        return _largest(operands[0], masks, depth - 1)
    if kind in ("Where", "Concat", "Max", "Min"):
        parts = [_largest(v, masks, depth - 1) for v in (operands[1:] if kind == "Where" else operands)]
        return None if None in parts else max(p for p in parts if p is not None)
    if kind in ("Add", "Sub", "Mul") and len(operands) == 2:
        a, b = (_largest(v, masks, depth - 1) for v in operands)
        return None if a is None or b is None else a * b if kind == "Mul" else a + b
    return None
