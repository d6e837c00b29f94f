"""What a user can do about a verdict: the commands that mend it, in backticks, or in words where there is none.

Target files say so of what is particular to a chip; here is what holds on any."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
from qdq_passes.fuse.edit.fusion import SINCE
from qdq_passes.graph.operators.activations import is_dpu_hard_sigmoid
from qdq_passes.graph.operators.qdq_ops import float_source, is_quantize
from qdq_passes.graph.operators.qoperators import form_of
from qdq_passes.graph.uses import is_standard, label, readers
from qdq_passes.integers.look.integer_products import is_integer_product
from qdq_passes.npu.partitions.partitions import WAYS_OUT
from qdq_passes.npu.units.float_causes import FloatCause, float_cause, float_causes
from qdq_passes.npu.units.units import Unit
from qdq_passes.npu.units.verdict import CUT_BEFORE
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.qdq.look.pairs import encoding_of, pair_of
from qdq_passes.refine.look.shifts import RULES

from qdqtool.targets.surroundings import operator_of_pieces

#: Operators for which a pass puts others, and that pass.
REPLACED = {
    "Attention": "decompose-attention", "BatchNormalization": "batch-norm-to-conv", "Dropout": "remove-identity",
    "Einsum": "decompose-einsum", "Erf": "fuse-gelu", "GRU": "unroll-recurrent", "Identity": "remove-identity",
    "LSTM": "unroll-recurrent", "RNN": "unroll-recurrent", "ReduceMean": "reduce-mean-to-global-pool",
    "RotaryEmbedding": "decompose-rotary-embedding", "Sigmoid": "sigmoid-to-hard-sigmoid",
    "SimplifiedLayerNormalization": "decompose-simplified-layer-norm", "Split": "split-to-slice",
    "com.microsoft::GatherBlockQuantized": "unpack-matmul-nbits",
    "com.microsoft::GroupQueryAttention": "decompose-group-query-attention", "com.microsoft::MatMulNBits": "unpack-matmul-nbits",
    "com.microsoft::MultiHeadAttention": "decompose-multi-head-attention",
    "com.microsoft::RotaryEmbedding": "decompose-rotary-embedding",
    "com.microsoft::SimplifiedLayerNormalization": "decompose-simplified-layer-norm",
    "com.microsoft::SkipLayerNormalization": "decompose-skip-layer-norm",
    "com.microsoft::SkipSimplifiedLayerNormalization": "decompose-skip-layer-norm",
}  # fmt: skip

#: How a suggestion begins where shapes hang on no dimension that could be bound.
NO_STATIC = "no pass is known that makes it static"
#: Names of inputs that hold a KV cache.
_CACHE = re.compile(r"past|cache", re.IGNORECASE)
#: What may be done about operators on integers.
QOPERATORS = "turn integer operators into float ones between pairs: `qdqtool qdq convert --qoperators`"

#: Attributes that a pass writes down where they are left to what follows of others.
_WRITTEN = frozenset({"auto_pad", "kernel_shape"})
#: Operators whose inputs and output stand at one position.
_ALIGNED = tuple(sorted({op for rule in RULES if rule.name.startswith("align-") for op in rule.op_types}))


def anew(target: str) -> str:
    """What gives everything encodings that the target takes."""
    return f"quantize the float model for this target: `qdqtool quantize --target {shlex.quote(target)}`"


def of_operator(op: str, unit: Unit, target: str) -> str:
    """Of an operator that a target has no rule for."""
    core = unit.core
    if core.op_type in WAYS_OUT and core.domain in ("", "ai.onnx"):
        return WAYS_OUT[core.op_type]
    if form_of(core) is not None or is_integer_product(core):
        return QOPERATORS
    if op in ("DynamicQuantizeLinear", "com.microsoft::DynamicQuantizeLinear"):
        return _dynamic(target)
    if op in REPLACED:
        return f"put another operator in its place: `qdqtool opt -p {REPLACED[op]}`"
    return of_form(op, unit, target)


def of_form(op: str, unit: Unit, target: str) -> str:
    """Of an operator that a target does not take, or not so, and that no pass replaces."""
    value = first_value(unit)
    cut = f"{CUT_BEFORE}`qdqtool extract --outputs {shlex.quote(value.name or '')}`" if value else ""
    return f"no pass is known that replaces this {op}: write it with what {target} takes{cut}"


def of_float(unit: Unit, target: str) -> str:
    """Of a unit that is not quantized; empty where it is."""
    cause = float_cause(unit)
    if cause is None or cause.value is None:
        return WAYS_OUT.get(unit.core.op_type, "no pass is known that takes the body away") if cause is not None else ""
    if unit.core.op_type == "BatchNormalization" and unit.core.domain in ("", "ai.onnx"):
        return of_batch_norm(target)
    if cause.kind == "integers":
        return QOPERATORS
    if cause.kind == "run-time-scale":
        return _dynamic(target)
    chosen = selected(cause.value.name)
    if cause.kind in ("input", "output"):
        whole = operator_of_pieces(unit.core)
        if whole is not None:  # a pair beside one piece leaves the others as they are
            return _in_one(whole, target)
        causes = [c for c in float_causes(unit) if c.kind in ("input", "output") and c.value is not None]
        pairs = " ".join(dict.fromkeys(selected(c.value.name) for c in causes if c.value is not None))
        these = "this pair" if len(causes) == 1 else "these pairs"
        return (
            f"{anew(target)}; or insert {these}: `qdqtool qdq insert {pairs} --ranges R.json` (of `qdqtool calibrate`)"
        )
    if cause.kind == "several" and len({encoding_of(n) for n, _ in readers(cause.value) if is_quantize(n)}) == 1:
        return f"make one pair of them: `qdqtool qdq share {chosen}`"
    insert = f"`qdqtool qdq insert {chosen}{options_of(cause.encoding)}`"
    return f"let all its users share one pair: `qdqtool qdq remove {chosen}`, then {insert}{_drop(cause)}"


def _in_one(operator: str, target: str) -> str:
    raised = f"`qdqtool convert-opset --opset {SINCE[operator]}` on the float model"
    return f"make one {operator} of it and the operators around: {raised}, then {anew(target)}"


def of_batch_norm(target: str) -> str:
    """Of a BatchNormalization that is left over."""
    fold = "fold it into the layer before it: `qdqtool opt -p fold-batch-norm` on the float model"
    without = "`qdqtool qdq remove --all` takes the pairs out first"
    return f"{fold} (as `qdqtool quantize --target {shlex.quote(target)}` does; {without})"


def of_shape(unit: Unit) -> str:
    """Of dimensions that must be static."""
    graph = unit.core.graph
    inputs = graph.inputs if isinstance(graph, ir.Graph) else ()
    names: dict[str, str] = {}
    for value in inputs:
        for index, dim in enumerate(value.shape or ()):
            if isinstance(dim, ir.SymbolicDim) and dim.value is not None:
                names.setdefault(dim.value, "1" if index == 0 else "N")
    if names:
        sizes = " ".join(f"--dim {shlex.quote(f'{name}={size}')}" for name, size in names.items())
        mend = f"make the shapes static: `qdqtool fix-shapes {sizes}`"
        is_decoder = any(_CACHE.search(value.name or "") for value in inputs)
        return f"make static graphs of the decoder: `qdqtool split`; or {mend}" if is_decoder else mend
    if any(not isinstance(dim, int) for value in inputs for dim in value.shape or (None,)):
        return "make the shapes static: `qdqtool fix-shapes --input-shape INPUT=1x3x224x224`"
    return f"{NO_STATIC}, where it hangs on the data: export the model with fixed shapes"


def of_computed(unit: Unit) -> str:
    """Of a shape, axes or bounds that are computed."""
    mend = of_shape(unit)
    if mend.startswith(NO_STATIC):
        return f"{NO_STATIC}: export the model with fixed shapes"
    return f"{mend}, then compute what hangs on them: `qdqtool simplify`"


def of_batch(most: int) -> str:
    """Of more samples at once than a target takes."""
    fewer = "set-batch" if most == 1 else shlex.quote(f"set-batch{{size={most}}}")
    met = "which names the operator where samples meet and leaves the model then"
    return f"take {most} at a time: `qdqtool opt -p {fewer}`, {met}; or export it with {most}"


def of_rank(most: int) -> str:
    """Of more dimensions than a target takes."""
    if most < 4:  # as few as `limit-rank` moves with
        return "no pass is known that mends it: merge dimensions where the model is exported"
    fewer = shlex.quote("limit-rank" if most == 5 else f"limit-rank{{rank={most}}}")
    return f"move it with fewer: `qdqtool opt -p {fewer}` on the float model; or merge dimensions where the model is exported"


def of_tail(unit: Unit, behind: str, target: str) -> str:
    """Of an operator that is computed in the same step behind another, and is not taken."""
    return f"{pair_before_tail(unit)}, so that only the {behind} runs on the CPU; or write it with what {target} takes"


def of_shift(node: ir.Node, target: str) -> str:
    """Of positions of ``node`` between which a target does not shift."""
    refined = "move the positions: `qdqtool opt -p refine-positions`"
    again = f"`qdqtool quantize --target {shlex.quote(target)}"
    left = f"leave it float: {again} --exclude {shlex.quote(node.name)}`" if node.name else ""
    sigmoid = _hard_sigmoid_before(node)
    if sigmoid is not None:
        fixed = f"the output of {label(sigmoid)} before it cannot move so far"
        kept = f"keep Sigmoid, whose output moves and loses bits: {again} --keep-sigmoid`"
        return f"{fixed}; {f'{left}; or ' if left else ''}{kept}"
    return f"{refined}; where it skips this node, {left}" if left else refined


def of_constant(value: ir.Value | None) -> str:
    """Of an input that must be a constant."""
    if value is None or not value.is_graph_input():
        return "compute it now where it hangs on constants alone: `qdqtool simplify`; else export the model with a constant"
    if value.const_value is not None:
        return "take its default for good: `qdqtool opt -p remove-initializer-inputs`"
    return "no pass is known that makes a constant of a graph input: export the model with its data inside"


def of_attribute(name: str) -> str:
    """Of an attribute whose value is not taken."""
    if name in _WRITTEN:
        return "write out what is left to a rule: `qdqtool opt -p explicit-conv-attributes`"
    return f"no pass is known that changes {name}: export the model with another"


def _dynamic(target: str) -> str:
    return f"take the scales that are computed at run time out: `qdqtool qdq remove --all`, then {anew(target)}"


def _hard_sigmoid_before(node: ir.Node) -> ir.Node | None:
    """The DPU's HardSigmoid whose output ``node``, an operator that needs one position for all it reads and writes, reads."""
    if not is_standard(node, *_ALIGNED):
        return None
    found = [source.producer() for value in node.inputs if (source := float_source(value)) is not None]
    while found:
        before = found.pop(0)
        if before is None or is_dpu_hard_sigmoid(before):
            if before is not None:
                return before
        elif is_standard(before, "Mul", *_ALIGNED):  # a factor stands behind it
            found += [source.producer() for value in before.inputs if (source := float_source(value)) is not None]
    return None


def _drop(cause: FloatCause) -> str:
    """What drops the value from the outputs of the graph, where it is one of several."""
    value = cause.value
    producer = value.producer() if value is not None else None
    if value is None or producer is None or not value.is_graph_output() or not isinstance(producer.graph, ir.Graph):
        return ""
    others = [output.name or "" for output in producer.graph.outputs if output is not value]
    return f"; or drop that output: `qdqtool extract --outputs {shlex.quote(','.join(others))}`" if others else ""


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
