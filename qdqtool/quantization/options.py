"""What is said of a quantization beside its preset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from qdqtool.quantization.extra_options import ExtraOptions


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user says; the names are those of the command's options.

    Args:
        method: calibration method instead of the preset's.
        exclude: selectors of nodes that stay float, beside the preset's.
        only: selectors of the only nodes to quantize.
        isolate: values of excluded nodes stay float altogether.
        weights: ``qdq`` or ``dq`` instead of the preset's.
        fuse_layers: false leaves out every pass of the fuse family.
        keep_sigmoid: leaves out the pass that puts the DPU's HardSigmoid in place of Sigmoid.
        keep_functions: local functions are not inlined.
        extra: options of the references.
    """

    method: str | None = None
    exclude: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    isolate: bool = False
    weights: Literal["qdq", "dq"] | None = None
    fuse_layers: bool = True
    keep_sigmoid: bool = False
    keep_functions: bool = False
    extra: ExtraOptions = field(default_factory=ExtraOptions)
