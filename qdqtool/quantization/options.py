"""What is said of a quantization beside its preset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from qdq_passes.errors import UsageError

from qdqtool.foreign.options import Said, parse_extra_options
from qdqtool.presets.recovery import NO_RECOVERY, Recovery
from qdqtool.quantization.annotating import Annotator

KvCache = Literal["float", "int8", "uint8"]
LmHead = Literal["preset", "float", "int8"]


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
        discard: selectors of nodes that are not annotated, as ExecuTorch says it; the same as ``exclude``.
        annotate: functions, or ``module:function``, that say what encodings single tensors get, see `annotating`.
        per_axis_conv: a scale per output channel of convolutions, true or false, instead of the preset's.
        per_axis_linear: likewise of Gemm and MatMul.
        embeddings: tables that Gather looks rows up in are quantized too.
        int8: selectors of what is stored in 8 bit, with the signedness of the preset's activations.
        int16: selectors of what is stored in 16 bit.
        fp16: selectors of nodes that compute in float16.
        bf16: selectors of nodes that compute in bfloat16.
        float: selectors of nodes that stay float.
        switch: switches of the preset to turn on.
        no_switch: switches of the preset to turn off.
        extra: options of other tools.
        recovery: what is done to win back accuracy.
        kv_cache: type of a decoder's cache, ``float`` leaves it.
        lm_head: the last projection: as the ``preset`` says, ``float``, or ``int8`` weights.
        bound_masks: masks of attentions hide by a bound that an integer grid can hold.
        integer_io: inputs and outputs that have an encoding are integers.
    """

    method: str | None = None
    exclude: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    isolate: bool = False
    weights: Literal["qdq", "dq"] | None = None
    fuse_layers: bool = True
    keep_sigmoid: bool = False
    keep_functions: bool = False
    discard: tuple[str, ...] = ()
    annotate: tuple[Annotator, ...] = ()
    per_axis_conv: bool | None = None
    per_axis_linear: bool | None = None
    embeddings: bool = False
    int8: tuple[str, ...] = ()
    int16: tuple[str, ...] = ()
    fp16: tuple[str, ...] = ()
    bf16: tuple[str, ...] = ()
    float: tuple[str, ...] = ()
    switch: tuple[str, ...] = ()
    no_switch: tuple[str, ...] = ()
    extra: Said = field(default_factory=dict)
    recovery: Recovery = NO_RECOVERY
    kv_cache: KvCache = "float"
    lm_head: LmHead = "preset"
    bound_masks: bool = False
    integer_io: bool = False

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Options:
        """What arguments of `quantize` say, by their names (`NAMES`).

        Raises:
            UsageError: an option that there is not.
        """
        for name in said:
            if name not in NAMES:
                raise UsageError(f"there is no option {name!r}", hint=f"there is {', '.join(NAMES)}")
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in said.items()
        }
        recovery = Recovery(**{name: values.pop(name) for name in _RECOVERY & values.keys()})
        extra = parse_extra_options(values.pop("extra_options", None) or {})
        return cls(**values, recovery=recovery, extra=extra)


_RECOVERY = frozenset(each.name for each in fields(Recovery))
#: Arguments of `quantize` that say what to quantize and how.
NAMES = tuple(sorted({each.name for each in fields(Options)} - {"extra", "recovery"} | {"extra_options"} | _RECOVERY))
