"""set-qdq"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.errors import UsageError
from qdq_passes.graph.edit import Namer
from qdq_passes.numerics.encoding import Encoding, parse_dtype
from qdq_passes.qdq.edit.checks import check_numbers, explicit_encoding
from qdq_passes.qdq.edit.reencode import (
    Edit,
    Target,
    check,
    float_tensor,
    reencode,
    settled,
    targets,
    why_not_editable,
    with_sharing,
    without_pair,
)
from qdq_passes.select.selectors import ALL, Selector


@dataclass(frozen=True)
class SetQdq(Pass):
    """Set scale, zero point, type, axis or block size of existing pairs; what is not given stays.

    Graph: unchanged but for parameters and stored integers, which are requantized from the values they stand for. A Q and all its
    DQs change together; parameters that other tensors read too are copied first.
    Requires: constant scales; opset 13 for per-axis, 21 for blocks and for types other than int8 and uint8.
    Keeps: names of inputs and outputs; int32 biases at s_x·s_w stay there when s_x or s_w is set.
    Skips: scales computed at run time; a FixNeuron; integers that are read by something else than DequantizeLinear; the type of
    integers that enter or leave the graph.

    Args:
        select: pairs, by their float value or by their Q or DQ node.
        scale: new scale(s); one, without ``axis``, makes the pair per-tensor, several run along ``axis``.
        zero_point: new zero point(s); one serves all scales.
        dtype: new storage type; scale and zero point stay, see convert-encodings for the type with the same range.
        axis: axis of the scales.
        block_size: elements of ``axis`` per scale; the scales are then in C order of their shape.
        sharing: ``follow`` sets all tensors that read the same scale, ``leave`` only what is selected.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="another grid, on purpose")
    select: Selector = ALL
    scale: tuple[float, ...] = ()
    zero_point: tuple[int, ...] = ()
    dtype: str = ""
    axis: int | None = None
    block_size: int = 0
    sharing: Literal["leave", "follow"] = "leave"

    def __post_init__(self) -> None:
        if not (self.scale or self.zero_point or self.dtype or self.axis is not None or self.block_size):
            raise UsageError(
                "nothing to set", where=self.name(), hint="give scale, zero-point, dtype, axis or block-size"
            )

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Choose for all, then write."""
        self._refuse()
        found = targets(model, self.select)
        if self.sharing == "follow":
            found = with_sharing(model, found)
        edits = []
        for target in found:
            old = target.encoding
            changes_type = old is not None and self.dtype != "" and parse_dtype(self.dtype) != old.dtype
            reason = why_not_editable(target, changes_type=changes_type)
            if reason is not None or old is None:
                yield skip(target.tensor, reason or "")
                continue
            new = settled(target, self._encoding(target, old))
            if new != old:
                check(model, target, new)
                edits.append(Edit(target, old, new))
        if not found:
            yield from without_pair(model, self.select)
        yield from reencode(model, edits, Namer(model))

    def _refuse(self) -> None:
        """Refuse options that can be no encoding, whatever the tensor."""
        if self.dtype:
            parse_dtype(self.dtype)
        if self.scale and self.zero_point and len(self.zero_point) not in (1, len(self.scale)):
            raise UsageError(f"{len(self.scale)} scales but {len(self.zero_point)} zero points", where=self.name())

    def _encoding(self, target: Target, old: Encoding) -> Encoding:
        """``old`` with what is given.

        Raises:
            UsageError: the parts do not fit together, or the type does not hold the zero point.
        """
        where, dtype = target.tensor, parse_dtype(self.dtype) if self.dtype else old.dtype
        scale, axis, block_size = self._layout(where, old)
        zeros = self.zero_point or tuple(int(z) for z in old.zero_point)
        if len(zeros) != len(scale) and len(set(zeros)) == 1:
            zeros = zeros[:1] * len(scale)
        try:
            check_numbers(where, scale, zeros, dtype, axis, block_size)
        except UsageError as error:
            if self.dtype and not self.zero_point and error.hint is None:
                error.hint = f"give zero-point too, or keep the range with convert-encodings{{dtype={self.dtype}}}"
            raise
        if not self.scale and (axis, block_size) == (old.axis, old.block_size):
            return dataclasses.replace(old, dtype=dtype, zero_point=zeros)
        return explicit_encoding(float_tensor(target), scale, zeros, dtype, axis, block_size)

    def _layout(self, where: str, old: Encoding) -> tuple[Sequence[float], int | None, int]:
        """Scales, axis and block size."""
        if not self.scale:
            if old.axis is None and (self.axis is not None or self.block_size):
                raise UsageError(
                    "an axis or blocks for one scale", where=where,
                    hint="give the scales too, or let convert-encodings{granularity=per-axis} choose them",
                )  # fmt: skip
            return old.scale, old.axis if self.axis is None else self.axis, self.block_size or old.block_size
        if self.axis is not None or self.block_size:
            return self.scale, old.axis if self.axis is None else self.axis, self.block_size
        if len(self.scale) == 1:
            return self.scale, None, 0
        return self.scale, old.axis, old.block_size
