"""Remove pairs, leaving the float value; stored integers are dequantized."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qdqtool.options import option
from qdqtool.verbs.editing import Edit
from qdqtool.verbs.pairs import PairEditing, Step, selected, wrong

if TYPE_CHECKING:
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
    restore_relu: bool = option(False, "Where a zero point clamps at 0 (a Relu that was left out), put a Relu.")
    undo_dpu: bool = option(False, "Also take back the DPU edits: pool factors, LeakyRelu alpha, HardSigmoid.")

    @property
    def is_of_all(self) -> bool:
        """Whether everything goes; taking back the DPU edits alone says so too."""
        return self.everything or (self.undo_dpu and not self.select)

    def steps(self) -> list[Step]:
        """The passes."""
        from qdqtool.verbs.work.removal import first_steps, plan

        if self.keep_weights and self.round_weights:
            raise wrong("remove", "--keep-weights leaves the pair that --round-weights removes")
        model, everything = self.paths[0], self.is_of_all
        chosen: dict[str, Any] | None = selected(self, "remove", everything=everything)
        steps: list[Step] = first_steps(model) if everything else []
        if self.select:
            assert chosen is not None
            before, chosen = plan(model, chosen, keep_weights=self.keep_weights)
            steps += before
        if everything and not self.keep_weights:
            steps += [("convert-qoperators", {}), ("unpack-matmul-nbits", {"weights": "float"})]
        if everything:
            steps += [("remove-dynamic-quantization", {})]
        if self.restore_relu and chosen is not None:
            steps.append(("restore-relu", chosen))
        elif everything:
            _warn_of_clamping(self.warn, model)
        weights = {"keep_weights": True} if self.keep_weights else {"round_weights": True} if self.round_weights else {}
        if chosen is not None:
            steps.append(("remove-qdq", {**chosen, **weights, **({"float_io": True} if everything else {})}))
        return [*steps, *([("undo-dpu-edits", {})] if self.undo_dpu else [])]

    def run(self) -> Saved:
        """What the passes did, and what was written; what stays quantized is told."""
        from qdqtool.verbs.work.removal import warn_of_rest

        saved = super().run()
        warn_of_rest(self.warn, saved, everything=self.is_of_all, keep_weights=self.keep_weights)
        return saved


def _warn_of_clamping(warn: Callable[[str], None] | None, model: str) -> None:
    """Say where the removal takes away what a Relu did."""
    from qdq_passes.qdq.look.pairs import qdq_pairs
    from qdq_passes.qdq.look.value_ranges import is_clamped_at_zero

    from qdqtool.io.files.progress import pass_on
    from qdqtool.io.models.load import load

    clamped = list(dict.fromkeys(pair.tensor for pair in qdq_pairs(load(model)) if is_clamped_at_zero(pair)))
    if clamped:
        more = f" and {len(clamped) - 1} more" if len(clamped) > 1 else ""
        pass_on([f"{clamped[0]}{more}: the zero point does the work of a Relu; --restore-relu puts one there"], warn)
