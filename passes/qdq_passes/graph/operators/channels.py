"""Channels: along which axis a weight holds one filter per output, and where a bias follows it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from qdq_passes.errors import UsageError
from qdq_passes.graph.uses import integer_of, label

#: Operators and the input that is a bias.
BIAS_INPUT = {"Conv": 2, "ConvTranspose": 2, "Gemm": 2, "LayerNormalization": 2, "GroupNormalization": 2}

#: Operators whose second input is a weight with an axis of output channels.
CHANNEL_OPS = ("Conv", "ConvTranspose", "Gemm", "MatMul")

_ENTRY = re.compile(r"([A-Za-z]\w*)(?::(-?\d+))?")

#: (node, input index).
Use = tuple[ir.Node, int]


def parse_per_axis(entries: Iterable[str]) -> dict[str, int | None]:
    """Operator type → axis of its weights, of entries ``"MatMul:1"``; ``"Conv"`` alone means the axis of output channels (None).

    Raises:
        UsageError: an entry that cannot be read, an operator named twice, one without an axis that has no output channels.
    """
    found: dict[str, int | None] = {}
    for entry in entries:
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise UsageError(f"per-axis entry {entry!r} cannot be read", hint="write Conv, or MatMul:1 for axis 1")
        op_type, axis = match[1], None if match[2] is None else int(match[2])
        if op_type in found:
            raise UsageError(f"per-axis names {op_type} twice", hint="one axis an operator type")
        if axis is None and op_type not in CHANNEL_OPS:
            raise UsageError(f"{op_type} has no axis of output channels", hint=f"name one, as in {op_type}:0")
        found[op_type] = axis
    return found


def output_axis(node: ir.Node, rank: int) -> int | None:
    """Axis of output channels of the weight (input 1, of ``rank`` dimensions) of ``node``, or None when it has none.

    Conv [M, C/g, …] → 0; ConvTranspose [C, M/g, …] → 1; Gemm [K, N] → 1, transposed [N, K] → 0; MatMul […, K, N] → the last,
    a vector [K] has none.
    """
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        return 1
    if node.op_type == "Gemm":
        return 0 if integer_of(node, "transB", 0) else 1
    return rank - 1 if node.op_type == "MatMul" and rank > 1 else None


def channel_axis(uses: Sequence[Use], rank: int) -> int | str:
    """The axis of output channels on which all readers of a weight of ``rank`` dimensions agree, or why there is none."""
    axes = set()
    for node, index in uses:
        axis = output_axis(node, rank) if index == 1 else None
        group = node.attributes.get("group")
        if node.op_type == "MatMul" and index == 0 and rank > 1:
            axis = rank - 2  # rows of the first factor are rows of the product
        if node.op_type == "ConvTranspose" and group is not None and not group.is_ref() and group.as_int() > 1:
            return f"output channels of {label(node)} lie along no axis of its weight, it has groups"
        if axis is None:
            return f"{label(node)} says no axis of output channels; give axis"
        axes.add(axis)
    if len(axes) > 1:
        return "its readers have different axes of output channels; give axis"
    return axes.pop() if axes else "nothing reads it; give axis"


def weight_axis(
    uses: Sequence[Use], shape: Sequence[int], per_axis: Mapping[str, int | None]
) -> tuple[int | None, str]:
    """Axis of the scales of a weight, and why there is none although a reader asks for one (else ``""``).

    Args:
        uses: the readers that demand an encoding of it.
        shape: its shape.
        per_axis: operator type → axis, see `parse_per_axis`.

    One weight has one encoding: readers that disagree, one that does not ask for an axis included, leave it per-tensor.
    """
    asked = [_asked_axis(node, index, len(shape), per_axis) for node, index in uses]
    axes = {axis for axis, _ in asked}
    if len(axes) > 1:
        shown = ", ".join(
            f"{label(node)} ({'per-tensor' if axis is None else f'axis {axis}'})"
            for (node, _), (axis, _) in zip(uses, asked, strict=True)
        )
        return None, f"per-tensor, as its readers disagree: {shown}"
    axis, reason = asked[0] if asked else (None, "")
    return axis, reason


def _asked_axis(node: ir.Node, index: int, rank: int, per_axis: Mapping[str, int | None]) -> tuple[int | None, str]:
    if node.op_type not in per_axis or BIAS_INPUT.get(node.op_type) == index:
        return None, ""
    if node.op_type in CHANNEL_OPS and index != 1:
        return None, ""
    axis = per_axis[node.op_type]
    if axis is None:
        axis = output_axis(node, rank)
        return axis, "" if axis is not None else "per-tensor, as a vector has no axis of output channels"
    if not -rank <= axis < rank:
        return None, f"per-tensor, as a tensor of {rank} dimensions has no axis {axis}"
    return axis % rank, ""


def block_axis(uses: Sequence[Use], shape: Sequence[int]) -> int | str:
    """The axis along which the readers of a weight sum, on which its blocks lie, or in words why there is none.

    MatMul […, K, N] → K, as the first factor […, M, K] likewise; Gemm [K, N] → 0, transposed [N, K] → 1; a table of rows that a
    Gather takes [V, D] → the last. Conv and ConvTranspose sum over several axes.
    """
    axes = {_summed_axis(node, index, len(shape)) for node, index in uses}
    if None in axes:
        names = ", ".join(dict.fromkeys(label(n) for n, i in uses if _summed_axis(n, i, len(shape)) is None))
        return f"{names} sums along no one axis of it"
    if len(axes) > 1:
        return "its readers sum along different axes"
    axis = axes.pop() if axes else None
    return "nothing reads it" if axis is None else axis


def _summed_axis(node: ir.Node, index: int, rank: int) -> int | None:
    if rank == 0:
        return None
    if node.op_type == "MatMul":
        return rank - 1 if index == 0 or rank == 1 else rank - 2
    if node.op_type == "Gemm" and index < 2 and rank == 2:
        transposed = integer_of(node, "transB" if index else "transA", 0)
        return int(bool(transposed)) if index else int(not transposed)
    if node.op_type == "Gather" and index == 0 and integer_of(node, "axis", 0) % rank != rank - 1:
        return rank - 1
    return None


def bias_channels(
    node: ir.Node, weight_axis: int, weight_shape: Sequence[int], bias_shape: Sequence[int]
) -> tuple[int, int] | None:
    """(axis, repeats): along which axis of its bias the scales of a per-axis weight lie, and how often they repeat there.

    A grouped ConvTranspose [C, M/g, …] has M/g scales for M biases: they repeat g times. None when the scales do not run
    along the channels of the bias.
    """
    count = weight_shape[weight_axis]
    if node.op_type in ("Conv", "ConvTranspose", "Gemm"):
        if weight_axis != output_axis(node, len(weight_shape)) or not bias_shape:
            return None
        repeats = integer_of(node, "group", 1) if node.op_type == "ConvTranspose" else 1
        return (len(bias_shape) - 1, repeats) if bias_shape[-1] == count * repeats else None
    if tuple(bias_shape) == tuple(weight_shape):
        return weight_axis, 1
    return None
