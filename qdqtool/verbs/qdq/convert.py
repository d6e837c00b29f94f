"""Convert pairs: width, signedness, symmetry, granularity, domain; bias types; integer operators into pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.options import option
from qdqtool.verbs.editing import Edit
from qdqtool.verbs.groups import Path
from qdqtool.verbs.pairs import Boundaries, PairEditing, Step, wrong


@dataclass(frozen=True, kw_only=True)
class Convert(PairEditing, Boundaries, Edit):
    """Convert pairs between widths, signs, granularities and domains; all of them, or those of --select."""

    leads: ClassVar[tuple[type, ...]] = (PairEditing,)

    dtype: str | None = option(
        None,
        "Storage type: int8, uint8, int16, uint16, int4…; 8 ↔ 16 bit and signed ↔ unsigned are exact.",
        value="TYPE",
    )
    symmetric: bool | None = option(
        None, "Zero point 0 (the middle of an unsigned type), or where the range wants it.", off="--asymmetric"
    )
    per_tensor: bool = option(False, "One scale for the whole tensor.")
    per_axis: bool = option(False, "Weights: a scale per output channel.")
    axis: int | None = option(None, "With --per-axis: the axis, instead of the operator's own.", value="N")
    kinds: Sequence[Literal["activation", "weight", "bias"]] = option((), "Only these (repeat to unite).")
    domain: Literal["onnx", "com.microsoft", "com.amd.quark", "com.vai.quantize", "fix-neuron"] | None = option(
        None, "Whose operators."
    )
    bias: Literal["int32", "int8"] | None = option(
        None, "Biases: int32 at the scale s_x·s_w, or int8 with a scale of its own."
    )
    qoperators: bool = option(False, "Integer operators (QLinearConv, QGemm, MatMulNBits…) into pairs.")
    target: Path | None = option(
        None, "Instead: all exact conversions that bring more of MODEL onto this NPU; outputs stay the same bits.",
        value="NAME|FILE", use="read", listed_by="targets",
    )  # fmt: skip

    def steps(self) -> list[Step]:
        """The passes."""
        if self.target is not None:
            return self._exact()
        if self.per_tensor and self.per_axis:
            raise wrong("convert", "give either --per-tensor or --per-axis")
        granularity = "per-tensor" if self.per_tensor else "per-axis" if self.per_axis else None
        encodings = {"dtype": self.dtype, "symmetric": self.symmetric, "granularity": granularity, "axis": self.axis}
        encodings = {name: value for name, value in encodings.items() if value is not None}
        if not (encodings or self.domain or self.bias or self.qoperators):
            raise wrong("convert", "nothing to convert; give --dtype, --domain, --bias, --qoperators, --target…")
        chosen = self.optionally_selected()
        only = {"kinds": list(self.kinds)} if self.kinds else {}
        is_narrow = self.domain in ("onnx", "fix-neuron")
        to_domain: list[Step] = [("convert-qdq-domain", {**chosen, "to": self.domain})] if self.domain else []
        steps: list[Step] = []
        if self.qoperators:
            steps += [("convert-qoperators", chosen), ("unpack-matmul-nbits", chosen)]
        steps += [] if is_narrow else to_domain  # first where types widen, last where they narrow
        steps += [("convert-encodings", {**chosen, **encodings, **only})] if encodings else []
        steps += [("convert-bias", {**chosen, "to": self.bias})] if self.bias else []
        steps += [("convert-boundaries", {})] if self.boundaries and self.dtype is not None else []
        return [*steps, *(to_domain if is_narrow else [])]

    def _exact(self) -> list[Step]:
        """The passes of ``target``.

        Raises:
            UsageError: another conversion, or what to convert, is given too.
        """
        from qdqtool.io.models.load import load
        from qdqtool.targets.loading import load_target
        from qdqtool.verbs.advice.converting import exact_steps

        given = (
            self.select,
            self.dtype,
            self.symmetric,
            self.per_tensor,
            self.per_axis,
            self.kinds,
            self.domain,
            self.bias,
        )
        if any(given) or self.qoperators or self.axis is not None:
            raise wrong("convert", "--target chooses the conversions; give it alone")
        assert self.target is not None
        return exact_steps(load(self.paths[0]), load_target(self.target), self.warn)
