"""fuse-instance-norm"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps
from qdq_passes.fuse._norms import BOUNDED, ROOTS, Norm, normalization_of, shape_of
from qdq_passes.fuse.edit.fusion import FusionPass, Match, fuse, why_not_float32
from qdq_passes.graph.uses import constant_array


@dataclass(frozen=True)
class FuseInstanceNorm(FusionPass):
    """Recognise InstanceNormalization in its pieces: one operator, or a group that is quantized as one.

    y = (x − μ)/√(σ² + ε)·γ + β, σ² = mean((x − μ)²); x [N, C, d1, …], means along d1, …, γ and β [C, 1, …]. All orders and
    groupings count, as in fuse-layer-norm; the means may be GlobalAveragePool. Without γ and β a sequence [N, C, L] is left to
    fuse-layer-norm. A GroupNorm, Reshape → InstanceNormalization → Reshape, stays as it is.

    Graph: ``x → ReduceMean, Sub, Pow, ReduceMean, Add, Sqrt, Div, Mul, Add → y`` → ``x → InstanceNormalization(γ, β) → y``; or
    unchanged, its nodes annotated ``part`` and the values between them ``fused``.
    Requires: the rank of x; the number of channels, where γ and β are missing.
    Keeps: inputs, outputs and their names; numerics within the bound, bit-exact with ``into=group``.
    Skips: an inner value that others read or that is a graph output; an ε that is not constant; the operator where it would
    compute other numbers (arithmetic in another type than float32).

    Args:
        into: ``operator`` replaces the nodes, ``group`` marks them, ``auto`` replaces them where it can.
        raise_opset: first convert the model to the opset of the operator, where nothing else is in its way; what cannot be
            converted stays in pieces.
    """

    bounded: ClassVar[Keeps] = BOUNDED

    def run(self, model: ir.Model) -> Iterator[Change]:
        """From each square root."""
        yield from fuse(model, ROOTS, _instance_norm, self.into, raise_opset=self.raise_opset)


def _instance_norm(node: ir.Node) -> Match | str | None:
    found = normalization_of(node)
    if found is None or found[0] != "InstanceNormalization":
        return None
    norm = found[1]
    if isinstance(norm, str):
        return norm
    channels = _channels(norm)
    differs = why_not_float32(norm.nodes, norm.x) or ("" if channels else "the number of channels is unknown")
    operands = (norm.x, _operand(norm.weight, channels, 1.0), _operand(norm.bias, channels, 0.0))
    epsilon = ir.AttrFloat32("epsilon", norm.stem.epsilon)
    return Match(found[0], norm.nodes, norm.x, norm.weight, norm.bias, operands, (epsilon,), differs)


def _channels(norm: Norm) -> int:
    """C of x [N, C, …]; 0 when unknown."""
    shapes = [shape_of(v) for v in (norm.weight, norm.bias) if v is not None]
    given = norm.stem.x.shape[1] if norm.stem.x.shape is not None else None
    return given if isinstance(given, int) else max((int(np.prod(shape)) for shape in shapes), default=0)


def _operand(constant: ir.Value | None, channels: int, default: float) -> npt.NDArray[Any]:
    array = constant_array(constant)
    return np.full(channels, default, np.float32) if array is None else array.reshape(-1)
