"""What a preset says: how a float model is prepared, calibrated and quantized. Values only; `loading` reads them from files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Literal

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Pass
from qdq_passes.encode.annotate_encodings import AnnotateEncodings
from qdq_passes.pipeline.text import format_pass
from qdq_passes.qdq.fold_weight_qdq import FoldWeightQdq
from qdq_passes.qdq.insert_qdq import InsertQdq
from qdq_passes.select.selectors import NONE, Selector

from qdqtool.presets.precision import NO_RULES, PrecisionRules
from qdqtool.presets.recovery import NO_RECOVERY, Recovery

#: Family whose passes ``fuse_layers=False`` leaves out.
_FUSING = "fuse"
#: Passes that ``keep_sigmoid`` leaves out.
HARD_SIGMOID = ("sigmoid-to-hard-sigmoid",)
#: The method that chooses weights by their squared error too.
_LEAST_SQUARES = "pow2-minmse"


@dataclass(frozen=True, kw_only=True)
class Preset:
    """How to quantize; the passes carry the options.

    Args:
        name: the name of its file: ``xint8``.
        description: one line.
        method: calibration method, as in ``--method``.
        method_options: method → its options here.
        before: passes run on the float model before calibration.
        ranged: passes that change the ranges before encodings are chosen from them.
        annotate: chooses the encodings; its ``encodings`` are a named input.
        insert: makes them real.
        after: passes on the pairs.
        no_per_axis: why weights have one scale each whatever the user asks for; empty where he may ask.
        precision: what of single nodes is said otherwise, and the switches for that.
        recovery: what is done to win back accuracy.
        constants_by_method: the method pow2-minmse chooses the encodings of constants too; false leaves that to ``annotate``.
        sha256: of what the file says (comments and layout do not count).
    """

    name: str
    description: str
    method: str
    before: tuple[Pass, ...]
    annotate: AnnotateEncodings
    insert: InsertQdq
    sha256: str
    method_options: Mapping[str, Mapping[str, str | int | float | bool]] = field(default_factory=dict)
    ranged: tuple[Pass, ...] = ()
    after: tuple[Pass, ...] = ()
    no_per_axis: str = ""
    precision: PrecisionRules = NO_RULES
    recovery: Recovery = NO_RECOVERY
    constants_by_method: bool = False

    @property
    def is_calibrated(self) -> bool:
        """Whether activations get encodings, so that ranges are needed."""
        return self.annotate.activations != "none"

    def pipeline_text(
        self,
        *,
        method: str | None = None,
        exclude: Sequence[str] = (),
        only: Sequence[str] = (),
        isolate: bool = False,
        weights: Literal["qdq", "dq"] | None = None,
        fuse_layers: bool = True,
        keep_sigmoid: bool = False,
    ) -> tuple[str, str]:
        """Canonical texts of the passes before calibration (may be empty) and after it.

        Args:
            method: calibration method instead of the preset's.
            exclude: selectors of nodes that stay float, besides those of the preset.
            only: selectors of the only nodes that may be quantized.
            isolate: what an excluded node touches stays float even if another node demands it.
            weights: how weights are stored, instead of the preset's way.
            fuse_layers: false leaves out the passes of the ``fuse`` family.
            keep_sigmoid: leaves Sigmoid as it is where the preset would put the DPU's HardSigmoid.

        Raises:
            UsageError: a text is no selector.
        """
        before = [p for p in self.before if fuse_layers or p.family() != _FUSING]
        after = [p for p in self.after if not (keep_sigmoid and p.name() in HARD_SIGMOID)]
        annotate = dataclasses.replace(
            self.annotate,
            exclude=_union(self.annotate.exclude, exclude),
            only=Selector.of(*only),
            isolate=isolate,
            constants=self._constants(method or self.method),
        )
        folded = (
            weights == "dq" and self.insert.weights == "qdq" and bool(after)
        )  # passes of after want the float weights
        insert = self.insert if folded or weights is None else dataclasses.replace(self.insert, weights=weights)
        return _text(before), _text([*self.ranged, annotate, insert, *after, *([FoldWeightQdq()] if folded else [])])

    def _constants(self, method: str) -> Literal["range", "minmse"]:
        """How the encodings of constants are chosen when activations are calibrated by ``method``."""
        if not self.constants_by_method:
            return self.annotate.constants
        return "minmse" if method == _LEAST_SQUARES and self.annotate.scales == "pow2" else "range"

    def explain(self) -> list[tuple[str, str]]:
        """Rows of (what, how), for people."""
        policy = self.annotate
        scales = "power-of-two scales" if policy.scales == "pow2" else "float scales"
        stored = "float initializer → Q → DQ" if self.insert.weights == "qdq" else "stored integers → DQ"
        least = " of least squared error" if self._constants(self.method) == "minmse" else ""
        least += f", one for {policy.block_size} elements" if policy.block_size else ""
        excluded = () if policy.exclude == NONE else policy.exclude.texts
        return [
            ("preset", f"{self.name}: {self.description}"),
            ("calibration method", self.method if self.is_calibrated else "none, activations stay float"),
            ("passes before calibration", _text(self.before) or "none"),
            ("activations", _activations(policy, scales)),
            (
                "weights",
                f"{_weights(policy)}, {scales}{least}, {stored}{', a pair per reader' if self.insert.dedicated else ''}",
            ),
            ("bias", _bias(policy, scales)),
            ("quantized operators", f"{len(policy.ops)}: {', '.join(policy.ops)}"),
            *([("outputs that stay float", ", ".join(policy.outputs_stay_float))] if policy.outputs_stay_float else []),
            ("excluded nodes", ", ".join(excluded) or "none"),
            *self.precision.explain(),
            *self.recovery.explain(),
            ("passes after calibration", self.pipeline_text()[1]),
            *[(f"options of {method}", _options(options)) for method, options in self.method_options.items()],
        ]


def _activations(policy: AnnotateEncodings, scales: str) -> str:
    if policy.activations == "none":
        return "float"
    return f"{policy.activations}, {'symmetric' if policy.symmetric else 'asymmetric'}, {scales}"


def _weights(policy: AnnotateEncodings) -> str:
    words = [policy.weights, "symmetric" if policy.weights_symmetric else "asymmetric"]
    words += ["one bit less"] if policy.reduce_range else []
    return ", ".join([*words, *([f"per-axis in {', '.join(policy.per_axis)}"] if policy.per_axis else [])])


def _bias(policy: AnnotateEncodings, scales: str) -> str:
    if policy.bias == "none":
        return "float"
    return (
        "int32 at s_x·s_w, stored integers"
        if policy.bias == "int32"
        else f"{policy.bias}, a scale of its own, {scales}"
    )


def _options(options: Mapping[str, object]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in options.items())


def _text(passes: Sequence[Pass]) -> str:
    return ",".join(format_pass(p) for p in passes)


def _union(own: Selector, more: Sequence[str]) -> Selector:
    texts = dict.fromkeys([*(() if own == NONE else own.texts), *more])
    return Selector.of(*texts) if texts else NONE
