"""The verb `compile`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.options import option
from qdqtool.verbs.npu.lowering import Lowering, lowered
from qdqtool.verbs.verb import Verb, function_of

if TYPE_CHECKING:
    from qdqtool.npu.compile import Lowered


@dataclass(frozen=True, kw_only=True)
class Compile(Lowering, Verb["Lowered"]):
    """Compile the QDQ model MODEL for an NPU: a model with programs, which the NPU's library runs without Python.

    Each part that the target computes becomes an EPContext node; the rest stays, and onnxruntime's CPU provider runs it.
    """

    embed: bool = option(True, "Programs in the model, or each in a file beside it.", shown=True)

    def run(self) -> Lowered:
        """The model, and what became of its parts.

        Raises:
            UnsupportedError: nothing of the model runs on the target: there is no program to write.
            QdqError: bad model or target; see each class's exit code.
        """
        return lowered(self, programs=True, embed=self.embed)


compile = function_of(Compile)
