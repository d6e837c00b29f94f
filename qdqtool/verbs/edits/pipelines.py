"""Verbs that are a pipeline of passes: `opt` the one that is given, `simplify` and `convert_opset` one that is known."""

from __future__ import annotations

import os
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

from qdqtool.options import metadata_of, option
from qdqtool.verbs.editing import Edit, Editing, PipelineEditing
from qdqtool.verbs.groups import OUTPUT, Findings, Path, Samples, Saving, first_samples
from qdqtool.verbs.verb import function_of

if TYPE_CHECKING:
    from qdqtool.io.files.edit_script import Script
    from qdqtool.runtime.hooks import NumericCheck
    from qdqtool.verbs.work.editing import Saved


#: Samples that ``check_data`` gives unless it is said.
CHECKED = 4


@dataclass(frozen=True, kw_only=True)
class Opt(Editing, Samples, Findings, Edit):
    """Run a pipeline of passes on MODEL."""

    leads: ClassVar[tuple[type, ...]] = (Saving,)

    text: str = field(
        metadata=metadata_of(
            "Passes, or @FILE with text or a TOML edit script.",
            value="TEXT",
            use="read",
            flags=("-p", "--pipeline"),
            required=True,
        )
    )
    ranges: Path | None = option(None, "Binds @ranges, the ranges that `calibrate` wrote.", value="FILE", use="read")
    encodings: Path | None = option(
        None, "Binds @encodings, an encodings file of any format.", value="FILE", use="read"
    )
    statistics: Path | None = option(
        None, "Binds @statistics, which `quantize --save-statistics` wrote.", value="FILE", use="read"
    )
    float_model: Path | None = option(
        None, "Binds @float, the float model that stored weights are quantized from.", value="FILE", use="read",
        flags=("--float",),
    )  # fmt: skip
    target: Path | None = option(None, "Binds @target.", value="T", use="read")
    verify_each: bool = option(True, "Verify after every pass, so that a message names the pass.")
    print_each: Path | None = option(
        None, "Write the model's text form after every pass into DIR.", value="DIR", use="into"
    )
    stop_after: int | None = option(None, "Stop after N passes.", value="N", least=0)
    check_data: str | None = option(
        None, "Run these samples before and after every pass; hold it to what it keeps.", value="D", use="read"
    )
    samples: int | None = first_samples(CHECKED)
    annotations: bool = option(False, "Save the annotations of passes in metadata (to look at in Netron).")
    reproducer: str | None = option(
        None, "Where a failing pass leaves its input; OUTPUT.reproducer by default.", value="DIR", use="into"
    )

    placed: ClassVar = {
        "samples": "allow_findings", "seed": "allow_findings", "image": "allow_findings", "allow_findings": "annotations",
    }  # fmt: skip

    def script(self) -> Script:
        """``-p TEXT`` or ``-p @FILE``: pipeline text, or a TOML edit script with ``[[pass]]`` tables and ``[inputs]``."""
        from qdq_passes.pipeline.pipeline import parse_pipeline

        from qdqtool.io.files.edit_script import Script, read_script

        text = self.text
        return read_script(text[1:]) if text.startswith("@") else Script(passes=parse_pipeline(text).passes)

    def run(self) -> Saved:
        """What the passes did, and what was written."""
        from qdq_passes.pipeline.hooks import StopAfter
        from qdq_passes.pipeline.pipeline import Pipeline

        from qdqtool.io.files.progress import pass_on
        from qdqtool.io.files.read import sha256_of_file
        from qdqtool.io.models.hooks import DumpEach
        from qdqtool.targets.loading import load_target
        from qdqtool.verbs.work.editing import run_and_save
        from qdqtool.verbs.work.named import named_inputs

        model, _ = self.paths
        files = {
            "ranges": self.ranges,
            "encodings": self.encodings,
            "statistics": self.statistics,
            "float": self.float_model,
        }
        script = self.script()
        if script.options and not script.passes:
            hint = "its [quantize] is for `qdqtool quantize --picks`"
            raise UsageError("holds no [[pass]]", where=self.text[1:], hint=hint)
        pipeline = Pipeline(script.passes)
        needed = pipeline.needs()
        inputs = named_inputs(self.warn, model, script, files, needed)
        if self.target and "target" not in needed:
            pass_on(["no pass of the pipeline reads @target: --target is not used"], self.warn)
        if script.source_sha256 and script.source_sha256 != sha256_of_file(model):
            pass_on([f"{self.text[1:]} was recorded on another model"], self.warn)
        check = self._numeric_check()
        hooks: list[Any] = [DumpEach(os.fspath(self.print_each), self.overwrite)] if self.print_each else []
        hooks += [StopAfter(self.stop_after)] if self.stop_after is not None else []
        hooks += [check] if check is not None else []
        ranges = inputs.get("ranges")
        if ranges is not None:
            from qdqtool.record.moves import EncodingWatch

            watch = EncodingWatch()
            hooks.append(watch)
        saved = run_and_save(
            self, pipeline, inputs=inputs, hooks=hooks, allow_findings=self.allow_findings,
            annotations=self.annotations or None, verify_each=self.verify_each, reproducer=self.reproducer,
            target=load_target(self.target) if self.target else None,
        )  # fmt: skip
        unchecked = check.unchecked if check is not None else ()
        pass_on([f"{passed} is not checked on the data: {why}" for passed, why in unchecked], self.warn)
        if ranges is not None:
            from qdqtool.quantization.reports import tensor_reports
            from qdqtool.verbs.work.bounds.scale_moves import moves_in

            done = saved.report.model
            pass_on(moves_in(done, watch, tensor_reports(done, ranges.value, {}), ranges.value), self.warn)
        return saved

    def _numeric_check(self) -> NumericCheck | None:
        from qdqtool.io.feeds.feeds import open_feeds
        from qdqtool.io.feeds.spec import input_specs
        from qdqtool.io.models.load import load
        from qdqtool.runtime.hooks import NumericCheck

        if not self.check_data:
            return None
        specs = input_specs(load(self.model))
        feeds = open_feeds(self.check_data, specs, samples=self.samples, seed=self.seed, image=self.image)
        return NumericCheck(feeds, samples=self.samples or CHECKED)


#: What is folded into the weights of layers, a chain of two twice.
_INTO_LAYERS = "fold-batch-norm,fold-scale{linear=true},fold-shift,fold-scale{linear=true},fold-shift,fold-pad"


@dataclass(frozen=True, kw_only=True)
class Simplify(PipelineEditing, Edit):
    """Fold constants, gains and pads, drop what is unused, double or does nothing, merge what moves; Q and DQ stay.

    Outputs stay within 2^-14 of the largest of them.
    """

    output: Path | None = field(default=None, kw_only=False, metadata=OUTPUT)
    fold_floats: bool = option(
        True,
        "Fold float arithmetic that runtimes round differently, and into weights; without it outputs stay bit for bit the same.",
    )

    def pipeline(self) -> str:
        """The passes."""
        fold = "fold-constants{what=all compute=@runtime}" if self.fold_floats else "fold-constants"
        layers = f"{_INTO_LAYERS}," if self.fold_floats else ""
        return (
            f"infer-shapes,lift-constants,{fold},infer-shapes,remove-no-ops{{identities=true}},merge-duplicates,merge-reshapes,"
            f"merge-slices,merge-concats,{layers}remove-unused,sort,infer-shapes"
        )


@dataclass(frozen=True, kw_only=True)
class ConvertOpset(PipelineEditing, Edit):
    """Convert MODEL to another version of the default operator set."""

    version: int = option(21, "Opset wanted.", flags=("--opset", "--version"), least=7, shown=True)

    def pipeline(self) -> str:
        """The pass."""
        return f"convert-opset{{version={self.version}}}" if self.version != 21 else "convert-opset"


VERBS = {"opt": Opt, "simplify": Simplify, "convert-opset": ConvertOpset}
opt = function_of(Opt)
simplify = function_of(Simplify)
convert_opset = function_of(ConvertOpset)
