"""Remove pairs, leaving the float value; stored integers are dequantized."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.options import option
from qdqtool.verbs.editing import Edit
from qdqtool.verbs.pairs import PairEditing, Step, selected, wrong

if TYPE_CHECKING:
    import onnx_ir as ir

    from qdqtool.verbs.work.editing import Saved


@dataclass(frozen=True, kw_only=True)
class Remove(PairEditing, Edit):
    """Remove QDQ pairs of any tool, leaving the float value; stored integers are dequantized."""

    leads: ClassVar[tuple[type, ...]] = (PairEditing,)

    everything: bool = option(
        False,
        "Everything quantized; integer operators, dynamic quantization, integer inputs and outputs too.",
        flags=("--all",),
    )
    keep_weights: bool = option(False, "Leave weights and biases quantized.")
    round_weights: bool = option(False, "A float weight under a pair takes the values of its grid.")
    restore_relu: bool | None = option(
        None,
        "Where a zero point clamps at 0 (a Relu that was left out), put a Relu; by default unless `quantize` made the pairs.",
        off="--keep-dropped",
    )
    undo_dpu: bool | None = option(
        None,
        "Also take back the DPU edits: pool factors, LeakyRelu alpha, HardSigmoid; by default with --all after `quantize`.",
    )

    @property
    def is_of_all(self) -> bool:
        """Whether everything goes; taking back the DPU edits alone says so too."""
        return self.everything or (self.undo_dpu is True and not self.select)

    @property
    def is_whole_between(self) -> bool:
        """A pair made of an integer operator may show what the operator hid, an infinite scale, until it goes too."""
        return not self.is_of_all

    def steps(self) -> list[Step]:
        """The passes."""
        from qdqtool.io.models.load import load

        return self.steps_on(load(self.paths[0]))

    def steps_on(self, graph: ir.Model) -> list[Step]:
        """The passes, for a model that is loaded already; it is only read."""
        from qdqtool.verbs.work.removal import Past, first_steps, has_integer_operators, plan

        if self.keep_weights and self.round_weights:
            raise wrong("remove", "--keep-weights leaves the pair that --round-weights removes")
        everything = self.is_of_all
        chosen: dict[str, Any] | None = selected(self, "remove", everything=everything)
        steps: list[Step] = first_steps(graph) if everything else []
        if self.select:
            assert chosen is not None
            before, chosen = plan(graph, chosen, keep_weights=self.keep_weights)
            steps += before
        if everything and not self.keep_weights:
            steps += [("convert-qoperators", {}), ("unpack-matmul-nbits", {"weights": "float"})]
        if everything:
            steps += [("remove-dynamic-quantization", {})]
        past = Past.of(graph)
        relus = self.restore_relu if self.restore_relu is not None else not past.keeps_relus
        if relus and chosen is not None:
            steps.append(("restore-relu", {**chosen, **({"by_name": False} if has_integer_operators(graph) else {})}))
        weights = {"keep_weights": True} if self.keep_weights else {"round_weights": True} if self.round_weights else {}
        if chosen is not None:
            steps.append(("remove-qdq", {**chosen, **weights, **({"float_io": True} if everything else {})}))
        undo = self.undo_dpu if self.undo_dpu is not None else everything and past.has_dpu_edits
        return [*steps, *([("undo-dpu-edits", {})] if undo else [])]

    def run(self) -> Saved:
        """What the passes did, and what was written; what stays quantized, or changed for its sake, is told."""
        from qdqtool.verbs.work.removal import warn_of_edits, warn_of_rest

        saved = super().run()
        warn_of_rest(self.warn, saved, everything=self.is_of_all, keep_weights=self.keep_weights)
        if self.is_of_all:
            warn_of_edits(self.warn, saved, self.paths[0], is_wanted=self.undo_dpu is False)
        return saved
