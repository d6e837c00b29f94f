"""The verb `quantize`: where quantization, comparison and language models meet."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, ClassVar, Self

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

from qdqtool.options import NODES, SAMPLED, SCHEME, WRITTEN, option, python_only
from qdqtool.quantization.options import SELECTING, DecoderOptions
from qdqtool.verbs.groups import DATA, MODEL, OUTPUT, Findings, HoldsOut, Path, Saving, Working
from qdqtool.verbs.named_paths import NamedPath
from qdqtool.verbs.planned import Planned
from qdqtool.verbs.verb import Verb, function_of

if TYPE_CHECKING:
    from qdq_passes.pipeline.pipeline import Hook

    from qdqtool.io.feeds.feeds import FeedSpec
    from qdqtool.io.models.working import ModelOrPath
    from qdqtool.search.recipe import Recipe
    from qdqtool.verbs.work.quantizing import Quantized


@dataclass(frozen=True, kw_only=True)
class Quantize(Planned, HoldsOut, Saving, Findings, Working, Verb["Quantized"]):
    """Quantize the float MODEL: clean, fuse, calibrate on --data, insert QDQ pairs."""

    examples: ClassVar[tuple[str, ...]] = (
        "quantize model.onnx --target vitis_xint8 --data samples.npz -o int8.onnx",
        "quantize model.onnx --preset 8a8w --int16 'op:Softmax' --data random:8 -o int8.onnx",
    )
    leads: ClassVar[tuple[type, ...]] = (Saving,)
    trails: ClassVar[tuple[type, ...]] = (DecoderOptions, Working)
    placed: ClassVar[Mapping[str, str]] = {
        **Planned.placed, "allow_findings": "exclude", "statistics": "save_statistics"
    }  # fmt: skip

    model: ModelOrPath = field(kw_only=False, metadata=MODEL)
    output: Path | None = field(default=None, kw_only=False, metadata=OUTPUT)
    data: FeedSpec | None = field(default=None, metadata=DATA)
    recipe: Recipe | Path | None = option(
        None, "Replay what `mixed-precision` or --goal wrote; no option may contradict it.",
        value="FILE", use="read", recipe=False, before="target", section=SCHEME,
    )  # fmt: skip
    picks: Path | None = option(
        None, "Also the options under [quantize] of this edit script, which `view --overlay --record` writes.",
        value="FILE", use="read", recipe=False, before="isolate", section=NODES,
    )  # fmt: skip
    report: Path | None = option(
        None, "Also write what became of each tensor: range, position, clipping, SQNR (JSON).",
        value="FILE", use="file", recipe=False, before="cache", section=WRITTEN,
    )  # fmt: skip
    min_sqnr: float | None = option(
        None, "Exit 1 if an output is below this SQNR. Default: 10 dB with --target.",
        value="DB", recipe=False, section=SAMPLED, before="data",
    )  # fmt: skip
    save_statistics: Path | None = option(
        None, "Also write the statistics that were used (.npz).",
        value="FILE", use="file", recipe=False, before="data", section=WRITTEN,
    )  # fmt: skip
    hooks: Iterable[Hook] = python_only((), "Pipeline hooks.")

    def named_paths(self) -> Iterator[NamedPath]:
        """As of every verb; of a folder of graphs the output is one."""
        is_folder = isinstance(self.model, str | os.PathLike) and os.path.isdir(self.model)
        for each in super().named_paths():
            yield replace(each, use="folder") if is_folder and each.name == "--output" else each

    def run(self) -> Quantized:
        """What became of the model; of a folder that `split` wrote, such a folder.

        Raises:
            QdqError: bad model, data or options; see each class's exit code.
        """
        from qdqtool.verbs.work.quantizing import quantized, replayed
        from qdqtool.verbs.work.texts import is_folder

        if self.picks is not None:
            return self.picked().run()
        if self.recipe is not None:
            return replayed(self, self.recipe)
        if not is_folder(self.model):
            return quantized(self)
        if self.hold_out:
            raise UsageError("--hold-out is of one model, not of a folder", hint="give fewer --samples")
        if self.min_sqnr is not None:
            raise UsageError(
                "--min-sqnr applies to one model, not to a folder", hint="compare its graphs with `qdqtool compare`"
            )
        from qdqtool.verbs.work.quantizing_decoders import quantized_folder

        return quantized_folder(self)

    def begun(self) -> Self:
        """These options with what follows from each other, and from what there is to quantize."""
        from qdqtool.verbs.work.texts import is_folder, is_text

        return self.picked().settled(is_text=is_text(self.data) or is_folder(self.model))

    def picked(self) -> Self:
        """These options with those of ``picks``.

        Raises:
            UsageError: the script has none, or one that `quantize` has not.
        """
        if self.picks is None:
            return self
        from qdqtool.io.files.edit_script import read_script

        found, where = read_script(self.picks).options, os.fspath(self.picks)
        if not found:
            raise UsageError(
                "holds no [quantize]", where=where, hint="`view --overlay --record` writes what is picked there"
            )
        if unknown := sorted(found.keys() - SELECTING):
            hint = f"there is {', '.join(SELECTING)}"
            raise UsageError(f"[quantize] has no option {unknown[0]!r} of selectors", where=where, hint=hint)
        more = {name: (*getattr(self, name), *texts) for name, texts in found.items()}
        return replace(self, picks=None, **more)  # type: ignore[arg-type]


quantize = function_of(Quantize)
