"""What is said of a quantization beside its preset."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.options import NODES, SCHEME, WRITTEN, option, pairs
from qdqtool.presets.recovery import Recovery

if TYPE_CHECKING:
    from qdqtool.foreign.options import Said
    from qdqtool.quantization.annotating import Annotator

#: Options that are selectors of nodes: those that an edit script keeps for `quantize`.
SELECTING = ("bf16", "exclude", "float", "fp16", "int16", "int8", "int8_weights", "only")


def _extra_options(texts: Iterable[str]) -> dict[str, object]:
    from qdqtool.foreign.options import read_extra_options

    return read_extra_options(texts)


@dataclass(frozen=True, kw_only=True)
class DecoderOptions:
    """What is said of a language model."""

    section: ClassVar[str] = "Language models"

    kv_cache: Literal["float", "int8", "uint8"] = option(
        "float",
        "Type of a decoder's cache: past and present are such integers, in one encoding a layer.",
        shown=True,
    )
    lm_head: Literal["preset", "float", "int8"] = option(
        "preset",
        "The last projection: as the preset says, float, or with int8 weights, a scale per output channel.",
        shown=True,
    )
    bound_masks: bool = option(True, "Attention masks of -1e9 or -inf hide by a bound that a grid can hold.")
    integer_io: bool = option(
        False,
        "Inputs and outputs that have an encoding are integers, not floats behind a pair.  [default: float-io]",
        off="--float-io", section=WRITTEN,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """What is said of a calibration method."""

    section: ClassVar[str] = SCHEME

    method_options: Mapping[str, str | int | float | bool] | None = option(
        None,
        "Option of the calibration method (repeat): percentile=99.99, symmetric=false, reference=true.",
        value="K=V", flags=("--method-option",), many=True, before="weights",
        read=lambda texts: pairs(texts, example="percentile=99.99"),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PlanOptions(Recovery, DecoderOptions, MethodOptions):
    """What to quantize and how, beside the preset."""

    section: ClassVar[str] = SCHEME

    method: str | None = option(None, "Calibration method instead of the preset's.", value="NAME", listed_by="methods")
    weights: Literal["qdq", "dq"] | None = option(None, "Pair on the float weight, or stored integers.")
    embeddings: bool = option(False, "Quantize the tables that Gather looks rows up in too.")
    fuse_layers: bool = option(True, "Fold BatchNormalization, keep fused groups free of pairs.")
    keep_sigmoid: bool | None = option(
        None,
        "Keep Sigmoid instead of the DPU's HardSigmoid. Default: the one with the higher SQNR.",
    )
    bind_batch: bool = option(True, "A symbolic batch is made 1 where the target takes static shapes alone.")
    keep_functions: bool = option(False, "Do not inline local functions; such a node counts as one operator.")
    extra_options: Mapping[str, object] | None = option(
        None,
        "An option of onnxruntime's or of the Vitis AI quantizer by its name, as in per_channel=true; V may be @FILE (repeat).",
        value="K=V", many=True, read=_extra_options,
    )  # fmt: skip
    exclude: Sequence[str] = option(
        (), "Nodes that stay float (selector; repeat to unite).", value="SEL", section=NODES
    )
    only: Sequence[str] = option((), "The only nodes that may be quantized.", value="SEL", section=NODES)
    isolate: bool = option(False, "Values of excluded nodes stay float even if a neighbour wants them.", section=NODES)
    discard: Sequence[str] = option(
        (),
        "Nodes that are not annotated: ExecuTorch's word for --exclude, which does the same; a name, or op:TYPE (repeat).",
        value="SEL", section=NODES,
    )  # fmt: skip
    annotate: Sequence[Annotator] = option(
        (),
        'Function F of module M (or file.py): gets the prepared model, returns {tensor: {"dtype": …}} (repeat).',
        value="M:F", many=True, section=NODES,
    )  # fmt: skip
    per_axis_conv: bool | None = option(
        None,
        "Weights of Conv and ConvTranspose with a scale per output channel, or one each, whatever the preset says.",
    )
    per_axis_linear: bool | None = option(None, "Likewise the weights of Gemm and MatMul.")
    int16: Sequence[str] = option(
        (), "What these nodes write is 16 bit (selector; repeat).", value="SEL", section=NODES
    )
    int8: Sequence[str] = option(
        (), "What these nodes write is 8 bit, under a 16-bit preset.", value="SEL", section=NODES
    )
    int8_weights: Sequence[str] = option(
        (),
        "The weights of these nodes are int8, a scale per output channel, under a preset of 4-bit weights.",
        value="SEL", section=NODES,
    )  # fmt: skip
    fp16: Sequence[str] = option((), "These nodes compute in float16, between Casts.", value="SEL", section=NODES)
    bf16: Sequence[str] = option((), "These nodes compute in bfloat16: for chips that do.", value="SEL", section=NODES)
    float: Sequence[str] = option((), "These nodes stay float, whatever the preset says.", value="SEL", section=NODES)
    switch: Sequence[str] = option((), "Turn on a switch of the preset (`list presets NAME`).", value="NAME")
    no_switch: Sequence[str] = option((), "Turn off a switch of the preset.", value="NAME")

    @functools.cached_property
    def extra(self) -> Said:
        """What the options of the references say."""
        if not self.extra_options:
            return {}
        from qdqtool.foreign.options import parse_extra_options

        return parse_extra_options(self.extra_options or {})
