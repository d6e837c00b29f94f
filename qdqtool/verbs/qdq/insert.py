"""Insert pairs on selected tensors with an encoding given, or on a model from ranges or an encodings file."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.options import option
from qdqtool.verbs.editing import Edit
from qdqtool.verbs.groups import Path
from qdqtool.verbs.pairs import Boundaries, PairEditing, Step, wrong

if TYPE_CHECKING:
    from qdqtool.io.files.edit_script import NamedInputs
    from qdqtool.verbs.work.editing import Saved


@dataclass(frozen=True, kw_only=True)
class Insert(PairEditing, Boundaries, Edit):
    """Insert QDQ pairs on the selected tensors, with an encoding given, chosen from ranges, or computed in the graph."""

    leads: ClassVar[tuple[type, ...]] = (PairEditing,)

    scales: Sequence[float] = option((), "Scale; repeat for per-axis or blocks.", value="S", flags=("--scale",))
    zero_points: Sequence[int] = option((), "Zero point; 0 by default.", value="Z", flags=("--zero-point",))
    dtype: str | None = option(None, "Storage type; int8 by default.", value="TYPE")
    axis: int | None = option(None, "Axis of per-axis or blocked scales.", value="N")
    block_size: int | None = option(None, "Elements of the axis per scale.", value="N", least=1)
    ranges: Path | None = option(
        None, "Choose encodings from the ranges that `calibrate` wrote.", value="FILE", use="read"
    )
    encodings: Path | None = option(
        None,
        "Take encodings from a file of AIMET, QNN or onnxruntime; see `encodings import`.",
        value="FILE",
        use="read",
    )
    policy: Literal["pow2", "any"] | None = option(
        None, "With --ranges: powers of two (default), or any scale.", flags=("--scales",)
    )
    asymmetric: bool = option(False, "With --ranges: activations have a zero point.")
    dynamic: bool = option(False, "Scales computed in the graph from each input (onnxruntime's dynamic quantization).")
    per_token: bool = option(False, "With --dynamic: a scale per index of all but the last axis.")
    weights: Literal["qdq", "dq"] = option("qdq", "Pair on the float weight, or stored integers.", shown=True)
    dedicated: bool = option(False, "A pair per reader instead of one for all.")
    domain: Literal["onnx", "com.microsoft", "com.amd.quark", "com.vai.quantize"] | None = option(
        None, "Whose operators."
    )

    def steps(self) -> list[Step]:
        """The passes."""
        self._refuse_mixed()
        chosen = self.optionally_selected()
        if self.dynamic:
            granularity = {"granularity": "per-token"} if self.per_token else {}
            return [("insert-dynamic-quantization", {**chosen, **granularity})]
        of_domain = {"domain": self.domain} if self.domain else {}
        options: dict[str, Any] = {**chosen, "weights": self.weights, **of_domain}
        options |= {"dedicated": True} if self.dedicated else {}
        after: list[Step] = [("convert-boundaries", {})] if self.boundaries else []
        if self.scales:
            options |= {"scale": list(self.scales), "zero_point": list(self.zero_points), "dtype": self.dtype or "int8"}
            options |= {"axis": self.axis} if self.axis is not None else {}
            options |= {"block_size": self.block_size} if self.block_size else {}
            return [("insert-qdq", options), *after]
        if self.encodings:
            apply: Step = ("apply-encodings", {"encodings": "@encodings", **of_domain})
            return [apply, ("insert-qdq", options), *after]
        annotate: dict[str, Any] = {"encodings": "@ranges", **of_domain}
        annotate |= {"activations": self.dtype} if self.dtype else {}
        annotate |= {"scales": self.policy} if self.policy else {"scales": "any"} if self.asymmetric else {}
        annotate |= {"symmetric": False} if self.asymmetric else {}
        return [("annotate-encodings", annotate), ("insert-qdq", options), *after]

    def _refuse_mixed(self) -> None:
        """Refuse options that do not go together.

        Raises:
            UsageError: the first such.
        """
        if [bool(self.scales), bool(self.ranges), bool(self.encodings), self.dynamic].count(True) != 1:
            raise wrong("insert", "give one of --scale, --ranges, --encodings and --dynamic")
        if not self.ranges and (self.policy or self.asymmetric):
            raise wrong("insert", "--scales and --asymmetric go with --ranges")
        if not self.dynamic and self.per_token:
            raise wrong("insert", "--per-token goes with --dynamic")
        if self.dynamic and (self.dtype or self.weights != "qdq" or self.dedicated or self.domain):
            others = "--dtype, --weights, --dedicated and --domain"
            raise wrong("insert", f"{others} do not go with --dynamic, which quantizes activations only")
        if not self.scales and (self.zero_points or self.axis is not None or self.block_size):
            raise wrong("insert", "--zero-point, --axis and --block-size go with --scale")
        if self.scales and not self.select:
            raise wrong("insert", "--scale without --select; say which tensors: --select tensor:NAME")

    def inputs(self) -> NamedInputs:
        """The ranges or encodings."""
        from qdqtool.verbs.work.named import bind

        files = {"ranges": self.ranges, "encodings": self.encodings}
        return {name: bind(name, os.fspath(file), self.paths[0]) for name, file in files.items() if file}

    def run(self) -> Saved:
        """What the passes did, and what was written; where no pair was made, why is told."""
        from qdqtool.io.files.progress import pass_on

        saved = super().run()
        if self.dynamic or any(part.modified for part in saved.report.passes if part.text.startswith("insert-qdq")):
            return saved
        reasons = Counter(change.because for change in saved.report.changes if change.is_skip).most_common(3)
        why = "; ".join(f"{because} ({count})" for because, count in reasons)
        pass_on(["no pair was inserted" + (f": {why}" if why else "")], self.warn)
        return saved
