"""The verb `quantize_to_goal`: what `quantize` does with ``--goal``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError

from qdqtool.options import options_of
from qdqtool.verbs.groups import Goals
from qdqtool.verbs.quantize import Quantize
from qdqtool.verbs.verb import Verb, function_of

if TYPE_CHECKING:
    from qdqtool.verbs.work.quantizing import Quantized


@dataclass(frozen=True, kw_only=True)
class QuantizeToGoal(Quantize, Goals, Verb["Quantized"]):
    """Quantize the float MODEL: clean, fuse, calibrate on --data, insert QDQ pairs.

    With --goal, search the cheapest quantization that reaches it on the target, and write that.
    """

    examples: ClassVar[tuple[str, ...]] = (
        *Quantize.examples,
        "quantize model.onnx --target qnn_htp --data samples.npz --goal 'accuracy >= 0.99 * float' -o int8.onnx",
    )
    trails: ClassVar[tuple[type, ...]] = (Goals, *Quantize.trails)
    placed: ClassVar[Mapping[str, str]] = Quantize.placed

    def run(self) -> Quantized:
        """The chosen quantization, with ``sought``; without a goal as `Quantize.run`.

        Raises:
            UsageError: an option of a goal without one, or a goal that cannot be judged.
            QdqError: as of `quantize`.
        """
        if self.picks is not None:
            return self.picked().run()
        if self.goal is not None:
            from qdqtool.verbs.work.goals.seeking import sought

            return sought(self)
        defaults = {each.name: each.default for each in options_of(Goals)}
        for name, default in defaults.items():
            if getattr(self, name) != default:
                raise UsageError(f"--{name.replace('_', '-')} goes with --goal", hint="say what is to be reached")
        return super().run()


quantize_to_goal = function_of(QuantizeToGoal)
