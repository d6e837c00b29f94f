"""What a preset says: how a float model is prepared, calibrated and quantized. Values only; `loading` reads them from files."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from qdq_passes.core.base import Named, Pass
from qdq_passes.core.pipeline_text import format_pass
from qdq_passes.core.select import NONE, Selector
from qdq_passes.qdq.annotate_encodings import AnnotateEncodings
from qdq_passes.qdq.insert_qdq import InsertQdq

#: Family whose passes ``fuse_layers=False`` leaves out.
_FUSING = "qdq_passes.fuse"


@dataclass(frozen=True, kw_only=True)
class Preset:
    """How to quantize; the passes carry the options.

    Args:
        name: the name of its file: ``xint8``.
        description: one line.
        method: calibration method, as in ``--method``.
        before: passes run on the float model before calibration.
        annotate: chooses the encodings; its ``encodings`` are a named input.
        insert: makes them real.
        sha256: of what the file says (comments and layout do not count).
    """

    name: str
    description: str
    method: str
    before: tuple[Pass, ...]
    annotate: AnnotateEncodings
    insert: InsertQdq
    sha256: str

    def pipeline_text(
        self,
        *,
        ranges_input: str = "ranges",
        exclude: Sequence[str] = (),
        only: Sequence[str] = (),
        isolate: bool = False,
        weights: Literal["qdq", "dq"] | None = None,
        fuse_layers: bool = True,
    ) -> tuple[str, str]:
        """Canonical texts of the passes before calibration (may be empty) and after it.

        Args:
            ranges_input: name of the pipeline's input that carries the ranges: ``"ranges"`` is written ``@ranges``.
            exclude: selectors of nodes that stay float, besides those of the preset.
            only: selectors of the only nodes that may be quantized.
            isolate: what an excluded node touches stays float even if another node demands it.
            weights: how weights are stored, instead of the preset's way.
            fuse_layers: false leaves out the passes of the ``fuse`` family.

        Raises:
            UsageError: a text is no selector.
        """
        before = [p for p in self.before if fuse_layers or not _is_fusing(p)]
        annotate = dataclasses.replace(
            self.annotate,
            encodings=Named(ranges_input),
            exclude=_union(self.annotate.exclude, exclude),
            only=Selector.of(*only),
            isolate=isolate,
        )
        insert = dataclasses.replace(self.insert, weights=weights or self.insert.weights)
        return _text(before), _text([annotate, insert])

    def explain(self) -> list[tuple[str, str]]:
        """Rows of (what, how), for people."""
        policy = self.annotate
        scales = "power-of-two scales" if policy.scales == "pow2" else "float scales"
        stored = "float initializer → Q → DQ" if self.insert.weights == "qdq" else "stored integers → DQ"
        excluded = () if policy.exclude == NONE else policy.exclude.texts
        return [
            ("preset", f"{self.name}: {self.description}"),
            ("calibration method", self.method),
            ("passes before calibration", _text(self.before) or "none"),
            ("activations", f"{policy.activations}, {'symmetric' if policy.symmetric else 'asymmetric'}, {scales}"),
            ("weights", f"{policy.weights}, symmetric, {scales}, {stored}"),
            ("bias", "float" if policy.bias == "none" else f"{policy.bias}, a scale of its own, {scales}"),
            ("quantized operators", f"{len(policy.ops)}: {', '.join(policy.ops)}"),
            ("excluded nodes", ", ".join(excluded) or "none"),
            ("passes after calibration", self.pipeline_text()[1]),
        ]


def _text(passes: Sequence[Pass]) -> str:
    return ",".join(format_pass(p) for p in passes)


def _is_fusing(pass_: Pass) -> bool:
    return type(pass_).__module__.rpartition(".")[0] == _FUSING


def _union(own: Selector, more: Sequence[str]) -> Selector:
    texts = dict.fromkeys([*(() if own == NONE else own.texts), *more])
    return Selector.of(*texts) if texts else NONE
