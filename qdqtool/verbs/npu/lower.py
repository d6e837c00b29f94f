"""The verb `lower`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.verbs.npu.lowering import Lowering, lowered
from qdqtool.verbs.verb import Verb, function_of

if TYPE_CHECKING:
    from qdqtool.npu.compile import Lowered


@dataclass(frozen=True, kw_only=True)
class Lower(Lowering, Verb["Lowered"]):
    """Write the QDQ model MODEL with the integer operators that an NPU computes, to look at or to run on the CPU.

    The operators are those of the domain ai.qdqtool; onnxruntime's CPU provider runs them with our library of custom operators.
    """

    def run(self) -> Lowered:
        """The model, and what became of its parts.

        Raises:
            QdqError: bad model or target; see each class's exit code.
        """
        return lowered(self, programs=False)


lower = function_of(Lower)
