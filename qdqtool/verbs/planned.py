"""What the verbs share that quantize: options that say what is quantized and how, and on what data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Self

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.options import ACCURACY, SAMPLED, SCHEME, option, part_of
from qdqtool.quantization.options import DecoderOptions, PlanOptions
from qdqtool.verbs.groups import AllowsEmpty, Path, Reports, Samples, Tokenized

if TYPE_CHECKING:
    from qdqtool.calibrate.ranges import Ranges
    from qdqtool.calibrate.statistics import Statistics
    from qdqtool.presets.preset import Preset
    from qdqtool.quantization.plan import Plan
    from qdqtool.search.variants import Scheme
    from qdqtool.targets.target import Target

#: What is quantized to where neither a preset is said nor a target that names one, and what that is for.
DEFAULT_PRESET = "xint8"
ASSUMED = f"quantized for Vitis, with --preset {DEFAULT_PRESET}: {{}}; say --target (`list targets`) or --preset (`list presets`)"


@dataclass(frozen=True, kw_only=True)
class Planned(PlanOptions, AllowsEmpty, Samples, Tokenized, Reports):
    """A quantization, before there is a model."""

    trails: ClassVar[tuple[type, ...]] = (DecoderOptions,)
    placed: ClassVar[Mapping[str, str]] = {"allow_empty": "discard"}

    preset: str | Preset | None = option(
        None,
        "What to quantize to, where not as the target says.",
        value="NAME|FILE",
        use="read",
        listed_by="presets",
        shown=DEFAULT_PRESET,
        section=SCHEME,
    )
    target: Path | None = option(
        None,
        "Quantize the operators that this target takes.",
        value="NAME|FILE",
        use="read",
        listed_by="targets",
        section=SCHEME,
    )
    ranges: Ranges | Path | None = option(
        None, "Ranges from `calibrate` instead of calibrating now.",
        value="FILE", use="read", recipe=False, before="weights", section=SAMPLED,
    )  # fmt: skip
    cache: Path | None = option(
        None, "Keep ranges here: reused for the same data, and an interrupted run goes on.",
        value="DIR", use="into", recipe=False, before="weights", section=SAMPLED,
    )  # fmt: skip
    statistics: Statistics | Path | None = option(
        None, "Statistics for these, of --save-statistics, instead of collecting them.",
        value="FILE", use="read", recipe=False, before="data", section=ACCURACY,
    )  # fmt: skip

    def settled(self, *, is_text: bool) -> Self:
        """These options with what follows from the others: ranges tell the method, a text of a decoder what it gains by."""
        from qdqtool.calibrate.ranges import Ranges
        from qdqtool.quantization.decoder_passes import decoder_equalize

        ranges = Ranges.given(self.ranges)
        return dataclasses.replace(
            self,
            ranges=ranges,
            method=self.method if ranges is None else ranges.method,
            method_options=self.method_options if ranges is None else None,
            equalize=decoder_equalize(self.loaded_preset(), self) if is_text else self.equalize,
        )

    def wanted_preset(self) -> str | Preset:
        """What is said, else what the target names; empty where neither is."""
        if self.preset:
            return self.preset
        chip = self._chip()
        return chip.legalization.preset if chip else ""

    def _chip(self) -> Target | None:
        if self.target is None:
            return None
        from qdqtool.targets.loading import load_target

        return load_target(self.target)

    def loaded_preset(self) -> Preset:
        """The preset, as its file says it."""
        from qdqtool.presets.loading import load_preset
        from qdqtool.presets.preset import Preset

        preset = self.wanted_preset()
        return preset if isinstance(preset, Preset) else load_preset(preset or DEFAULT_PRESET)

    def scheme(self) -> Scheme:
        """Preset, options and target, without what is written where and who is told."""
        from qdq_passes.numerics.encoding import parse_dtype

        from qdqtool.io.files.progress import pass_on
        from qdqtool.search.variants import Scheme

        chip = self._chip()
        if not self.wanted_preset():
            why = f"{chip.name} names no preset" if chip else "neither --target nor --preset says for what"
            pass_on([ASSUMED.format(why)], self.warn)
        preset = self.loaded_preset()
        activations = preset.annotate.activations
        stored = parse_dtype(activations) if activations != "none" else None
        return Scheme(
            preset=preset,
            options=part_of(PlanOptions, self),
            ops=chip.quantized_ops(stored) if chip else (),
            legalization=chip.legalization if chip else None,
        )

    def plan(self) -> Plan:
        """What will run."""
        return self.scheme().plan()
