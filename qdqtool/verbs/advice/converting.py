"""Exact conversions that put a quantized file on a target: the encodings it has, written as the target takes them.

    QLinearConv …                 pairs around Conv …                      convert-qoperators
    uint8, zero point z + 128     int8, zero point z, and back             convert-encodings
    bias without a pair, or int8  int32 at s_x·s_w, and back               convert-bias
    several pairs on one value    one, or one for each reader              share-qdq, dedicate-qdq
    x → Reshape → Q → DQ          a pair of the same encoding before it    insert-qdq

All are tried on copies; a step is taken where the target takes more with it, and the outputs are the same bits in onnxruntime.
Only operators on integers may differ by one step at the outputs, which is said: they round a sum that pairs hold in floats."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir
from qdq_passes.errors import QdqError, UnsupportedError
from qdq_passes.graph.edit import copy_model
from qdq_passes.graph.evaluate.exact import REARRANGING
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantize
from qdq_passes.graph.uses import is_standard
from qdq_passes.npu.units.verdict import VERDICT_KINDS
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.pipeline.pipeline import Pipeline
from qdq_passes.pipeline.text import make_pass
from qdq_passes.qdq.look.pairs import encoding_of
from qdq_passes.select.globs import literal_tensor

from qdqtool.io.feeds.feeds import open_feeds
from qdqtool.io.feeds.spec import input_specs
from qdqtool.io.files.progress import Warn, pass_on
from qdqtool.npu.analyzing import placed_on
from qdqtool.npu.shares import AROUND, Placed
from qdqtool.quantization.quantized_files import existing_quantization, integer_operators, way_to_pairs
from qdqtool.runtime.session import open_session
from qdqtool.targets.target import Target
from qdqtool.verbs.pairs import Step

#: Random samples that outputs are compared on.
SAMPLES = 4
_TYPES = ("int8", "uint8")


def exact_steps(model: ir.Model, target: Target, warn: Warn | None = None) -> list[Step]:
    """Return the passes that bring most of the quantized ``model``, which stays as it is, onto ``target``, bit for bit the same.

    Raises:
        UnsupportedError: the model is not quantized, or no exact conversion brings more of it onto the target.
    """
    where = model.graph.name
    if not existing_quantization(model):
        hint = f"quantize it: {way_to_pairs('MODEL', target.name)}"
        raise UnsupportedError("is not quantized", where=where, hint=hint)
    outputs = _Outputs(model)
    taken: list[Step] = []
    work, start = copy_model(model), placed_on(model, target)
    if integer_operators(work):
        steps: list[Step] = [("convert-qoperators", {})]
        tried = _edited(work, steps)
        differing = None if tried is None else outputs.within_a_step(tried)
        if tried is None or differing is None:
            hint = "`qdqtool qdq convert --qoperators` converts them all the same"
            raise UnsupportedError("its integer operators do not compute as pairs do", where=where, hint=hint)
        if differing:
            pass_on(
                [f"pairs round otherwise than operators on integers: {differing} by one step, the rest is equal"], warn
            )
            outputs = _Outputs(tried)
        taken, work = steps, tried
    placed = placed_on(work, target)
    for candidates in (_types, _sharing, _beside_movement, _beside_movement, _opsets):
        best, refused = (placed, work, list[Step]()), list[tuple[Placed, list[Step]]]()
        for steps in candidates(work):
            tried = _edited(work, steps)
            after = None if tried is None else placed_on(tried, target)
            if tried is None or after is None or _rank(after) <= _rank(best[0]):
                continue
            if outputs.are_kept(tried):
                best = (after, tried, steps)
            else:
                refused.append((after, steps))
        lost = [steps for after, steps in refused if _rank(after) > _rank(best[0])]
        pass_on([f"left out, as outputs would differ: {_text(steps)}" for steps in lost[:1]], warn)
        placed, work = best[:2]
        taken += best[2]
    if _rank(placed) <= _rank(start) and not placed.refusals:
        raise UnsupportedError(f"nothing to convert: {target.name} takes {placed.text}", where=where)
    if _rank(placed)[:3] <= _rank(start)[:3]:
        why = f": {placed.refusals[0].who}: {placed.refusals[0].reason}" if placed.refusals else ""
        raise UnsupportedError(
            f"no exact conversion brings more of it onto {target.name}, which takes {placed.text}{why}", where=where,
            hint="take the pairs out with `qdqtool qdq remove --all`, and quantize the float model for the target",
        )  # fmt: skip
    return taken


class _Outputs:
    """What a model computes on random samples."""

    def __init__(self, model: ir.Model) -> None:
        self._feeds = list(open_feeds(f"random:{SAMPLES}", input_specs(model)))
        self._wanted = self._run(model)

    def _run(self, model: ir.Model) -> list[Mapping[str, Array]]:
        session = open_session(model)
        found: list[Mapping[str, Array]] = [session.run(feed) for feed in self._feeds]
        session.close()
        return found

    def are_kept(self, model: ir.Model) -> bool:
        """Whether ``model`` gives the same bits, but for the sign of zeros."""
        pairs = zip(self._wanted, self._run(model), strict=True)
        return all(
            np.array_equal(a[name], b[name], equal_nan=a[name].dtype.kind == "f") for a, b in pairs for name in a
        )

    def within_a_step(self, model: ir.Model) -> str | None:
        """How many elements of the outputs of ``model`` differ, all by one step of their pair at most: ``2 of 40 elements
        differ``; "" where none does, None where one differs more."""
        steps = {value.name: _step(value) for value in model.graph.outputs}
        count = total = 0
        for was, now in zip(self._wanted, self._run(model), strict=True):
            for name, array in was.items():
                if array.shape != now[name].shape or not np.array_equal(np.isfinite(array), np.isfinite(now[name])):
                    return None
                is_number = np.isfinite(array)
                off = np.abs(array[is_number].astype(np.float64) - now[name][is_number])
                if off.size and off.max() > 1.001 * steps[name]:
                    return None
                count, total = count + int(np.count_nonzero(off)), total + array.size
        return f"{count} of {total} elements of the outputs differ" if count else ""


def _step(value: ir.Value) -> float:
    """The step of the pair that writes ``value``; 0 of none."""
    producer = value.producer()
    encoding = None if producer is None or not is_dequantize(producer) else encoding_of(producer)
    return 0.0 if encoding is None else max(encoding.scale)


def _edited(model: ir.Model, steps: Sequence[Step]) -> ir.Model | None:
    """A copy of ``model`` behind ``steps``; None where they change nothing, or one declines loudly."""
    copy = copy_model(model)
    try:
        report = Pipeline(tuple(make_pass(name, dict(options)) for name, options in steps)).run(copy)
    except QdqError:  # no way for this model
        return None
    return copy if report.modified else None


def _rank(placed: Placed) -> tuple[float, int, int, int]:
    """How much the target takes: multiply-accumulates, operators, how many of them on integers, and how few are refused for what
    they are themselves."""
    kinds: tuple[str, ...] = VERDICT_KINDS
    nodes = [node for node in placed.nodes if node.is_compute]
    refused = sum(len(refusal.nodes) for refusal in placed.refusals if refusal.rule not in AROUND)
    floats = sum(kinds.index(node.placement.verdict) for node in nodes)
    return placed.share, placed.npu_compute_nodes, -floats, -refused


def _text(steps: Sequence[Step]) -> str:
    return str(Pipeline(tuple(make_pass(name, dict(options)) for name, options in steps)))


def _types(model: ir.Model) -> Iterator[list[Step]]:
    """Types of activations, weights and biases, the fewest changes first."""
    activations, weights, biases = (
        [("convert-encodings", {"dtype": dtype, "kinds": ["activation"]}) for dtype in _TYPES],
        [("convert-encodings", {"dtype": dtype, "kinds": ["weight"]}) for dtype in _TYPES],
        [("convert-bias", {"to": "int32"})],
    )
    every = itertools.product([None, *activations], [None, *weights], [None, *biases])
    combined: list[list[Step]] = [[step for step in steps if step is not None] for steps in every]
    yield from sorted((steps for steps in combined if steps), key=len)


def _sharing(model: ir.Model) -> Iterator[list[Step]]:
    yield [("share-qdq", {})]
    yield [("dedicate-qdq", {})]


def _opsets(model: ir.Model) -> Iterator[list[Step]]:
    yield [("convert-opset", {})]


def _beside_movement(model: ir.Model) -> Iterator[list[Step]]:
    """Pairs on the other side of what only moves elements: x → Reshape → Q rounds as x → Q → DQ → Reshape → Q does."""
    steps: list[Step] = []
    for node in model.graph:
        source = node.inputs[0] if is_standard(node, *REARRANGING) and node.inputs else None
        if source is None or not source.name:
            continue
        output, producer = node.outputs[0], source.producer()
        before = None if producer is None or not is_dequantize(producer) else encoding_of(producer)
        behind = {encoding_of(use.node) for use in output.uses() if is_quantize(use.node)}
        if before is None and len(behind) == 1 and producer is not None and not is_dequantize(producer):
            steps += _pair(source, next(iter(behind)))
        elif before is not None and not behind:
            steps += _pair(output, before)
    if steps:
        yield steps


def _pair(value: ir.Value, encoding: Encoding | None) -> list[Step]:
    """The pass that inserts a pair of ``encoding`` on ``value``; none where it has a scale for each channel."""
    if encoding is None or len(encoding.scale) != 1 or encoding.axis is not None:
        return []
    options = {
        "select": [literal_tensor(value.name or "")], "scale": list(encoding.scale),
        "zero_point": [int(zero) for zero in encoding.zero_point], "dtype": encoding.dtype.name.lower(),
    }  # fmt: skip
    return [("insert-qdq", options)]
