"""Shape and type functions of operators that onnx has no schema of: those of onnxruntime that decoders are made of.

Each operator is a schema with a function in Python, which onnx's own inference calls: its one pass in C++ then goes through deep
models as if it knew the operators. onnx looks schemas up in a table of the whole process, so they stand there only while
`known_to_onnx` lasts: the checker refuses these operators as before, and no function of ours outlives the interpreter (one that
does hangs onnx 1.19 at exit). A schema that somebody else registered is left to them.

Source of the shapes: onnxruntime's docs/ContribOperators.md; checked against what onnxruntime computes.

Of attentions: B batch, S new tokens, P past, N heads, K cached heads, D head size."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy.typing as npt
import onnx_ir as ir
from onnx import TensorProto, TypeProto, defs

from qdq_passes.graph.operators.qoperators import MICROSOFT
from qdq_passes.graph.shapes.contrib_call import (
    UNKNOWN,
    Call,
    ContextCall,
    Dim,
    NodeCall,
    Spec,
    broadcast,
    product,
    proto_of,
    quotient,
    total,
)
from qdq_passes.graph.shapes.guards import guarding


def group_query_attention(call: Call) -> Sequence[Spec | None]:
    """query [B, S, N·D], or [B, S, (N + 2K)·D] where no key is given → [B, S, N·D]; caches [B, K, max(past, total), D]."""
    query, past = call.input(0), call.input(3)
    heads, cached = call.integer("num_heads"), call.integer("kv_num_heads")
    packed = not call.has(1)
    size = quotient(query.dim(-1), heads + 2 * cached if packed else heads)
    output = query.with_dims((query.dim(0), query.dim(1), product(heads, size) if packed else query.dim(-1)))
    present = _grown(call, past, query.with_dims((query.dim(0), cached, None, size)))
    scores = output.with_dims((query.dim(0), heads, query.dim(1), present.dim(2)))
    return output, present, _grown(call, call.input(4), present), scores


def _grown(call: Call, past: Spec, otherwise: Spec) -> Spec:
    """The cache behind a GroupQueryAttention: as long as the one before, or as the total length, whichever is more."""
    length = call.data(6)
    count = int(length.reshape(-1)[0]) if length is not None and length.size == 1 else None
    before = past.dim(2)
    rows: Dim = None
    if not call.has(3):
        rows = count
    elif count is not None and isinstance(before, int):
        rows = max(count, before)
    dims = [known if known is not None else other for known, other in _pairs(past, otherwise)]
    return Spec(past.dtype or otherwise.dtype, (dims[0], dims[1], rows, dims[3]))


def _pairs(past: Spec, otherwise: Spec) -> list[tuple[Dim, Dim]]:
    return [(past.dim(axis) if isinstance(past.dim(axis), int) else None, otherwise.dim(axis)) for axis in range(4)]


def multi_head_attention(call: Call) -> Sequence[Spec | None]:
    """query [B, S, N·D], or all three in one [B, S, N, 3, D] → [B, S, N·Dv]; caches [B, N, P + S, D]."""
    query, key, value, heads = call.input(0), call.input(1), call.input(2), call.integer("num_heads")
    if query.rank == 5:
        size, width, new = query.dim(4), product(heads, query.dim(4)), query.dim(1)
    else:
        size, new = quotient(query.dim(-1), heads), _rows(key)
        width = (
            value.dim(-1) if value.rank == 3 else product(heads, value.dim(-1)) if value.rank == 4 else query.dim(-1)
        )
    output = query.with_dims((query.dim(0), query.dim(1), width))
    return (output, *_presents(call, 6, query.with_dims((query.dim(0), heads, new, size)), quotient(width, heads)))


def _rows(key: Spec) -> Dim:
    """Tokens in a key: [B, L, N·D], [B, L, N, 2, D], or of cross attention [B, N, L, D]."""
    return key.dim(2) if key.rank == 4 else key.dim(1)


def _presents(call: Call, at: int, new: Spec, value_size: Dim) -> list[Spec]:
    """The two caches behind input ``at`` (key) and ``at + 1`` (value), to which ``new`` rows are added."""
    found = []
    for index, size in ((at, new.dim(3)), (at + 1, value_size)):
        past = call.input(index)
        shared = call.has(8) or bool(call.integer("past_present_share_buffer"))
        rows = (
            past.dim(2)
            if shared and call.has(index)
            else total(past.dim(2), new.dim(2))
            if call.has(index)
            else new.dim(2)
        )
        found.append(new.with_dims((new.dim(0), new.dim(1), rows, size)))
    return found


def attention(call: Call) -> Sequence[Spec | None]:
    """x [B, S, W], weight [W, 3·N·D] → [B, S, N·Dv]; the cache [2, B, N, P + S, D] holds keys and values."""
    x, weight, past = call.input(0), call.input(1), call.input(4)
    widths, heads = call.integers("qkv_hidden_sizes"), call.integer("num_heads")
    width: Dim = widths[2] if len(widths) == 3 else quotient(weight.dim(1), 3)
    rows = past.dim(3) if call.integer("past_present_share_buffer") else total(past.dim(3), x.dim(1))
    present = x.with_dims((2, x.dim(0), heads, rows if call.has(4) else x.dim(1), quotient(width, heads)))
    return x.with_dims((x.dim(0), x.dim(1), width)), present


def sparse_attention(call: Call) -> Sequence[Spec | None]:
    """As `group_query_attention`, its caches always in place."""
    query, heads, cached = call.input(0), call.integer("num_heads"), call.integer("kv_num_heads")
    packed = not call.has(1)
    size = quotient(query.dim(-1), heads + 2 * cached if packed else heads)
    output = query.with_dims((query.dim(0), query.dim(1), product(heads, size) if packed else query.dim(-1)))
    return output, call.input(3), call.input(4)


def decoder_attention(call: Call) -> Sequence[Spec | None]:
    """DecoderMaskedMultiHeadAttention: query [B, 1, N·D] → the same; caches are as long as before, or one more."""
    query, value, heads = call.input(0), call.input(2), call.integer("num_heads")
    if not call.has(5):
        return query.with_last(value.dim(-1) if value.rank == 3 else query.dim(-1)), UNKNOWN, UNKNOWN
    size = quotient(query.dim(-1), heads)
    shared = bool(call.integer("past_present_share_buffer"))
    presents = []
    for index in (5, 6):
        past = call.input(index)
        rows = past.dim(2) if shared else total(past.dim(2), 1)
        presents.append(query.with_dims((query.dim(0), heads, rows, past.dim(3) if past.dim(3) is not None else size)))
    return query, *presents


Rule = Callable[[Call], Sequence[Spec | None]]
_lock = threading.Lock()


def _same(call: Call) -> Sequence[Spec | None]:
    """Every output is like the first input."""
    return [call.input(0)] * call.outputs


def _norm(call: Call) -> Sequence[Spec | None]:
    """x [..., W] → like x; then mean and inverse deviation, float [..., 1]."""
    x = call.input(0)
    axis = call.integer("axis", -1)
    dims = x.dims
    if dims is not None:
        first = axis % len(dims) if dims else 0
        dims = (*dims[:first], *((1,) * (len(dims) - first)))
    figures = Spec(TensorProto.FLOAT, dims)
    scale = call.input(1)
    return Spec(scale.dtype or x.dtype, x.dims), figures, figures


def _skip_norm(call: Call) -> Sequence[Spec | None]:
    """x [..., W] + skip → like x; mean and inverse deviation, float [..., 1]; and the sum, like x."""
    x = call.input(0)
    figures = Spec(TensorProto.FLOAT, x.with_last(1).dims)
    return x, figures, figures, x


def _embed_norm(call: Call) -> Sequence[Spec | None]:
    """ids [B, S], table [V, W] → [B, S, W], mask index [B], sum [B, S, W]."""
    ids, table = call.input(0), call.input(2)
    output = table.with_dims((ids.dim(0), ids.dim(1), table.dim(1)))
    return output, Spec(TensorProto.INT32, (ids.dim(0),)), output


def _gemma_rotary(call: Call) -> Sequence[Spec | None]:
    """emb, q, q rotated, k, k rotated → like q, like k."""
    return call.input(1), call.input(3)


def _matmul_nbits(call: Call) -> Sequence[Spec | None]:
    """A [..., K] → [..., N], the attribute."""
    return [call.input(0).with_last(call.integer("N"))]


def _split_gelu(call: Call) -> Sequence[Spec | None]:
    """x [..., 2W] → [..., W]."""
    x = call.input(0)
    return [x.with_last(quotient(x.dim(-1), 2))]


def _fused_matmul(call: Call) -> Sequence[Spec | None]:
    """A [..., M, K] · B [..., K, N], each transposed where its attribute says so."""
    a, b = (_transposed(call, index, letter) for index, letter in ((0, "A"), (1, "B")))
    if a.dims is None or b.dims is None or not a.dims or not b.dims:
        return [call.input(0).with_dims(None)]
    left = a.dims if len(a.dims) > 1 else (1, *a.dims)
    right = b.dims if len(b.dims) > 1 else (*b.dims, 1)
    rows = left[-2:-1] if len(a.dims) > 1 else ()
    columns = right[-1:] if len(b.dims) > 1 else ()
    return [a.with_dims((*broadcast(left[:-2], right[:-2]), *rows, *columns))]


def _transposed(call: Call, index: int, letter: str) -> Spec:
    """Operand of a FusedMatMul as it is multiplied: [M, batch…, K] with transBatch, its last two exchanged with trans."""
    spec = call.input(index)
    dims = spec.dims
    if dims is None or len(dims) < 2:
        return spec
    if call.integer(f"transBatch{letter}"):
        dims = (*dims[1:-1], dims[0], dims[-1])
    return spec.with_dims((*dims[:-2], dims[-1], dims[-2]) if call.integer(f"trans{letter}") else dims)


def _matmul_to_float(call: Call) -> Sequence[Spec | None]:
    """A [..., K] · B [K, N] of integers → float [..., N], of the type of A or of its scale."""
    a, b = call.input(0), call.input(1)
    dtype = a.dtype if a.dtype == TensorProto.FLOAT else call.input(2).dtype
    return [Spec(dtype, None if a.dims is None or b.rank != 2 else (*a.dims[:-1], b.dim(-1)))]


def _gather_blocks(call: Call) -> Sequence[Spec | None]:
    """data [..., G, ...] of blocks, indices → data's dims with those of indices in place of G; a byte may hold two elements."""
    data, indices, scales = call.input(0), call.input(1), call.input(2)
    if data.dims is None or indices.dims is None:
        return [scales.with_dims(None)]
    axis = call.integer("gather_axis") % len(data.dims)
    per_byte = 8 // call.integer("bits", 4) if data.dtype == TensorProto.UINT8 else 1
    dims: list[Dim] = list(data.dims)
    dims[-1] = product(dims[-1], per_byte)
    return [scales.with_dims((*dims[:axis], *indices.dims, *dims[axis + 1 :]))]


def _quantize(call: Call) -> Sequence[Spec | None]:
    """Like x, of the type of the zero point; uint8 without one."""
    return [Spec(call.input(2).dtype or TensorProto.UINT8, call.input(0).dims)]


def _dequantize(call: Call) -> Sequence[Spec | None]:
    """Like x, of the type of the scale."""
    return [Spec(call.input(1).dtype, call.input(0).dims)]


#: Operator → its shape function, by domain. LayerNormalization: onnx knows it since opset 17, onnxruntime since 1.
RULES: dict[str, dict[str, Rule]] = {
    "": {"LayerNormalization": _norm, "SimplifiedLayerNormalization": _norm},
    MICROSOFT: {
        "Attention": attention,
        "BiasGelu": _same,
        "BiasSplitGelu": _split_gelu,
        "DecoderMaskedMultiHeadAttention": decoder_attention,
        "DequantizeLinear": _dequantize,
        "DynamicQuantizeMatMul": _matmul_to_float,
        "EmbedLayerNormalization": _embed_norm,
        "FastGelu": _same,
        "FusedMatMul": _fused_matmul,
        "FusedMatMulActivation": _fused_matmul,
        "GatherBlockQuantized": _gather_blocks,
        "Gelu": _same,
        "GemmaRotaryEmbedding": _gemma_rotary,
        "GroupQueryAttention": group_query_attention,
        "MatMulBnb4": _matmul_nbits,
        "MatMulIntegerToFloat": _matmul_to_float,
        "MatMulNBits": _matmul_nbits,
        "MoE": _same,
        "MultiHeadAttention": multi_head_attention,
        "QMoE": _same,
        "QuantizeLinear": _quantize,
        "QuickGelu": _same,
        "RotaryEmbedding": _same,
        "SimplifiedLayerNormalization": _norm,
        "SkipLayerNormalization": _skip_norm,
        "SkipSimplifiedLayerNormalization": _skip_norm,
        "SparseAttention": sparse_attention,
        "TransposeMatMul": _fused_matmul,
    },
}

#: Operators of com.microsoft whose floats are all of one type, float32 or float16 (read in the schemas of onnxruntime 1.31.1).
OF_ONE_FLOAT_TYPE = frozenset(
    {
        "BiasGelu", "BiasSplitGelu", "EmbedLayerNormalization", "FastGelu", "FusedMatMul", "Gelu", "GroupQueryAttention",
        "MultiHeadAttention", "QuickGelu", "RotaryEmbedding", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization",
    }
)  # fmt: skip


def contrib_types(
    node: ir.Node, types: Mapping[ir.Value, TypeProto], arrays: Mapping[ir.Value, npt.NDArray[Any]]
) -> dict[ir.Value, TypeProto]:
    """Types of the outputs of ``node`` by `RULES`, as far as they follow from the ``types`` and ``arrays`` of its inputs."""
    rule = RULES.get(node.domain, {}).get(node.op_type)
    call = NodeCall(node, types, arrays)
    if rule is None or call.input(0) is UNKNOWN:
        return {}
    pairs = zip(node.outputs, rule(call), strict=False)
    return {value: proto_of(spec) for value, spec in pairs if value.name != "" and spec is not None and spec.dtype}


@cache
def _schema(domain: str, op_type: str) -> defs.OpSchema | None:
    """The schema of an operator of `RULES`, with its shape function; None for others. It is not registered."""
    rule = RULES.get(domain, {}).get(op_type)
    if rule is None:
        return None
    kind = defs.OpSchema
    one, many = (
        kind.FormalParameter(
            name, name.upper(), param_option=kind.FormalParameterOption.Variadic, is_homogeneous=False, min_arity=0
        )
        for name in ("x", "y")
    )
    types = [(name, ["tensor(float)"], "") for name in ("X", "Y")]
    schema = kind(op_type, domain, 1, inputs=[one], outputs=[many], type_constraints=types)
    schema.set_type_and_shape_inference_function(_function(rule))
    return schema


def _function(rule: Rule) -> Callable[[Any], None]:
    def infer(context: Any) -> None:
        call = ContextCall(context)
        if call.input(0) is not UNKNOWN:
            call.answer(rule(call))

    return infer


@contextmanager
def known_to_onnx(operators: Iterable[tuple[str, str]]) -> Iterator[None]:
    """Let onnx's inference know those of ``operators`` (domain, type) that it has no schema of, and keep from it what ends the
    process (`guards`), for the time of the body.

    One body at a time runs in a process.
    """
    operators = dict.fromkeys(operators)
    with _lock, guarding(op_type for domain, op_type in operators if domain in ("", "ai.onnx")):
        registered: list[defs.OpSchema] = []
        try:
            for domain, op_type in operators:
                schema = _schema(domain, op_type)
                if schema is not None and not _is_registered(schema):
                    defs.register_schema(schema)
                    registered.append(schema)
            yield
        finally:
            for schema in registered:
                defs.deregister_schema(schema.name, schema.since_version, schema.domain)


def _is_registered(schema: defs.OpSchema) -> bool:
    return any(
        known.name == schema.name and known.domain == schema.domain and known.since_version == schema.since_version
        for known in _versions(schema)
    )


def _versions(schema: defs.OpSchema) -> list[defs.OpSchema]:
    try:
        return [defs.get_schema(schema.name, schema.since_version, schema.domain)]
    except defs.SchemaError:
        return []
