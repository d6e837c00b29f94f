"""Weights that are int8 where the preset has fewer bits: of the nodes that the user names, and of the last projection."""

from __future__ import annotations

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import UsageError
from qdq_passes.graph.operators.channels import CHANNEL_OPS, weight_axis
from qdq_passes.graph.uses import is_constant, readers
from qdq_passes.numerics.encoding import parse_dtype
from qdq_passes.select.selectors import Selector, select_nodes

from qdqtool.presets.preset import Preset
from qdqtool.quantization.options import PlanOptions

LM_HEAD = "role:lm_head"
#: Weights of fewer bits may be raised to this.
BITS = 8


@dataclass(frozen=True)
class EightBitWeights:
    """Says that weights are int8, symmetric, with a scale per output channel, or one where their readers disagree on those.

    It is called as `qdqtool.quantization.annotating` does.

    Args:
        texts: selectors of nodes; those that match nothing say nothing.
        is_said: the user named them, and is told of those.
    """

    texts: tuple[str, ...]
    is_said: bool = True

    @property
    def option(self) -> str:
        """What asked for it, as messages call it."""
        return "--int8-weights" if self.is_said else "--lm-head"

    def __call__(self, model: ir.Model) -> dict[str, dict[str, object]]:
        """Overrides by the names of the weights."""
        found: dict[str, dict[str, object]] = {}
        nodes = (node for text in self.texts for node in select_nodes(model, Selector.of(text), allow_empty=True))
        for node in sorted(nodes, key=lambda node: node.name or ""):
            value = node.inputs[1] if len(node.inputs) > 1 and node.op_type in CHANNEL_OPS else None
            if value is None or not value.name or not is_constant(value) or value.shape is None:
                continue
            axis = weight_axis(readers(value), tuple(value.shape.numpy()), dict.fromkeys(CHANNEL_OPS))[0]
            found[value.name] = {"dtype": "int8", "symmetric": True, **({} if axis is None else {"axis": axis})}
        return found


def has_narrow_weights(preset: Preset) -> bool:
    """Whether weights of ``preset`` have fewer bits than 8."""
    return parse_dtype(preset.annotate.weights).bitwidth < BITS


def eight_bit_weights(preset: Preset, options: PlanOptions) -> tuple[EightBitWeights, ...]:
    """What ``options`` ask for: of the last projection whatever the preset, of other nodes where it has fewer bits.

    Raises:
        UsageError: the preset has no fewer.
    """
    if options.int8_weights and not has_narrow_weights(preset):
        hint = "leave it out, or take a preset of 4-bit weights (`list presets`)"
        raise UsageError(f"{preset.name} has no weights of fewer bits", where="--int8-weights", hint=hint)
    head = (EightBitWeights((LM_HEAD,), is_said=False),) if options.lm_head == "int8" else ()
    return (*head, *((EightBitWeights(tuple(options.int8_weights)),) if options.int8_weights else ()))
