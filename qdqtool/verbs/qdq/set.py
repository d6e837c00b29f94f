"""Give pairs another scale, zero point or type; stored integers are requantized."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.options import option
from qdqtool.verbs.editing import Edit
from qdqtool.verbs.groups import Path
from qdqtool.verbs.pairs import All, Boundaries, PairEditing, Step, selected, wrong

if TYPE_CHECKING:
    from qdqtool.io.files.edit_script import NamedInputs


@dataclass(frozen=True, kw_only=True)
class Set(PairEditing, All, Boundaries, Edit):
    """Set scale, zero point or type of the selected pairs; what is not given stays, stored integers are requantized."""

    leads: ClassVar[tuple[type, ...]] = (
        PairEditing,
        All,
    )

    scales: Sequence[float] = option((), "Scale; repeat for per-axis or blocks.", value="S", flags=("--scale",))
    zero_points: Sequence[int] = option((), "Zero point; repeat likewise.", value="Z", flags=("--zero-point",))
    dtype: str | None = option(None, "Storage type.", value="TYPE")
    axis: int | None = option(None, "Axis of per-axis or blocked scales.", value="N")
    block_size: int | None = option(None, "Elements of the axis per scale.", value="N", least=1)
    round_pow2: bool = option(False, "Round every scale up to a power of two, 2^-p.")
    nearest: bool = option(False, "With --round-pow2: to the nearest in log2, which may clip.")
    sharing: Literal["leave", "follow"] = option(
        "leave", "Whether tensors that read the same scale follow.", shown=True
    )

    float_model: Path | None = option(
        None, "Quantize stored weights and biases anew from those of this float model.", value="F", use="read",
        flags=("--float",),
    )  # fmt: skip

    def inputs(self) -> NamedInputs:
        """The float model's constants."""
        from qdqtool.verbs.work.named import bind

        return {} if self.float_model is None else {"float": bind("float", os.fspath(self.float_model), self.paths[0])}

    def steps(self) -> list[Step]:
        """The passes."""
        given: dict[str, Any] = {
            "scale": list(self.scales), "zero_point": list(self.zero_points), "dtype": self.dtype, "axis": self.axis,
            "block_size": self.block_size,
        }  # fmt: skip
        given = {name: value for name, value in given.items() if value not in (None, [])}
        if not given and not self.round_pow2 and self.float_model is None:
            raise wrong("set", "nothing to set; give --scale, --zero-point, --dtype, --axis, --round-pow2 or --float")
        if self.nearest and not self.round_pow2:
            raise wrong("set", "--nearest goes with --round-pow2")
        chosen = selected(self, "set", everything=self.everything)
        follow = {"sharing": self.sharing} if self.sharing != "leave" else {}
        steps: list[Step] = [("set-qdq", {**chosen, **given, **follow})] if given else []
        if self.round_pow2:
            steps.append(("round-scales-pow2", {**chosen, **({"nearest": True} if self.nearest else {})}))
        steps += [("requantize-constants", {**chosen, "floats": "@float"})] if self.float_model is not None else []
        return [*steps, *([("convert-boundaries", {})] if self.boundaries and self.dtype is not None else [])]
