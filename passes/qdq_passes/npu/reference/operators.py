"""The operators of the reference, by (domain, operator); those that are not here are functions of one value, or move."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from qdq_passes.npu.reference import reductions, rotary
from qdq_passes.npu.reference import resize as resizing
from qdq_passes.npu.reference.elementwise import added, compared, divided, multiplied
from qdq_passes.npu.reference.movement import max_pool
from qdq_passes.npu.reference.products import einsum, product
from qdq_passes.npu.reference.values import ReferenceNode, Value

Handler = Callable[[ReferenceNode], Sequence[Value]]

OPERATORS: Mapping[tuple[str, str], Handler] = {
    ("", "LayerNormalization"): reductions.layer_norm,
    ("", "RMSNormalization"): reductions.rms_norm,
    ("", "SimplifiedLayerNormalization"): reductions.rms_norm,
    ("", "InstanceNormalization"): reductions.instance_norm,
    ("", "GroupNormalization"): reductions.group_norm,
    ("", "LpNormalization"): reductions.lp_norm,
    ("", "Conv"): product,
    ("", "ConvTranspose"): product,
    ("", "Gemm"): product,
    ("", "MatMul"): product,
    ("", "Add"): added,
    ("", "Sub"): added,
    ("", "Mul"): multiplied,
    ("", "Div"): divided,
    ("", "Max"): compared,
    ("", "Min"): compared,
    ("", "ReduceMax"): reductions.reduced_extreme,
    ("", "ReduceMin"): reductions.reduced_extreme,
    ("", "ReduceMean"): reductions.reduced_mean,
    ("", "ReduceSum"): reductions.reduced_sum,
    ("", "AveragePool"): reductions.pooled_mean,
    ("", "GlobalAveragePool"): reductions.pooled_mean,
    ("", "MaxPool"): max_pool,
    ("", "GlobalMaxPool"): max_pool,
    ("", "Softmax"): reductions.softmax,
    ("", "Einsum"): einsum,
    ("", "Resize"): resizing.resize,
    ("", "RotaryEmbedding"): rotary.rotary_embedding,
    ("com.microsoft", "RotaryEmbedding"): rotary.contrib_rotary_embedding,
}
