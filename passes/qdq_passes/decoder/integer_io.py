"""integer-io"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import ClassVar, Literal

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.decoder.look.cache import cache_pairs
from qdq_passes.decoder.look.record import DECODER, CacheTensor
from qdq_passes.graph.edit import Namer, replace_value
from qdq_passes.graph.uses import in_order
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.qdq.look.exact import rounding_of
from qdq_passes.qdq.look.pairs import encoding_of, is_dequantize, is_quantize
from qdq_passes.select.selectors import ALL, Selector, select_values


@dataclass(frozen=True)
class IntegerIo(Pass):
    """Let inputs and outputs hold integers: the QuantizeLinear behind an input, and the DequantizeLinear before an output, become
    the business of whoever feeds and reads the model.

    Graph: ``x → QuantizeLinear → DequantizeLinear →`` → ``x → DequantizeLinear →``, x an integer; ``Op → Q → DQ → y`` →
    ``Op → Q → y``, y an integer, and other readers of the DQ keep it.
    Requires: constant scales per tensor; pairs, from `insert-qdq`.
    Keeps: names of inputs and outputs, not their types; numerics: the integers are those of the pair. A cache of a decoder has
        its scale and zero point in the annotation ``decoder`` once its past and its present are integers.
    Skips: inputs that something else reads too, or several QuantizeLinear of different encodings; outputs that no
        DequantizeLinear writes, or that one writes of a graph input or of a constant; what has no pair.

    Args:
        select: inputs and outputs: ``io:*``, ``tensor:past_*``; all by default.
        of: of these the KV ``cache`` of a decoder alone, or ``all``.
    """

    keeps: ClassVar[Keeps] = Keeps(
        "changes", why="inputs and outputs are integers instead of the floats they stand for"
    )
    select: Selector = ALL
    of: Literal["all", "cache"] = "all"

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Inputs first, then outputs; what neither a selector nor a pair speaks of stays float."""
        chosen, namer = self._chosen(model), Namer(model)
        found: dict[str, Encoding] = {}
        for value in [v for v in model.graph.inputs if v in chosen and v.name not in model.graph.initializers]:
            yield from self._input(value, namer, found)
        for value in [v for v in model.graph.outputs if v in chosen]:
            yield from self._output(model, value, namer, found)
        _record(model, found)

    @property
    def _is_asked(self) -> bool:
        return self.of == "cache" or not self.select.is_all

    def _chosen(self, model: ir.Model) -> set[ir.Value]:
        chosen = select_values(model, self.select)
        if self.of == "all":
            return chosen
        record = DECODER.get(model.graph)
        if record is None:
            pairs = cache_pairs(model.graph.inputs, in_order(model.graph))
            return chosen & {value for pair, _ in pairs for value in (pair.past, pair.present)}
        names = {name for tensor in record.cache for name in (tensor.past, tensor.present)}
        return {value for value in chosen if value.name in names}

    def _input(self, value: ir.Value, namer: Namer, found: dict[str, Encoding]) -> Iterator[Change]:
        nodes = [use.node for use in value.uses()]
        if not any(is_quantize(node) for node in nodes):
            if self._is_asked:
                yield skip(value, "no QuantizeLinear reads this input")
            return
        encoding = _shared_encoding(nodes)
        if value.is_graph_output() or encoding is None:
            yield skip(value, "is read by more than QuantizeLinear of one encoding per tensor")
            return
        for node in nodes:
            replace_value(node.outputs[0], value, namer)
            assert node.graph is not None
            node.graph.remove(node, safe=True)
        value.type = ir.TensorType(encoding.dtype)
        found[value.name or ""] = encoding
        yield Change("edit", value.name or "", f"comes in as {_words(encoding)}")

    def _output(self, model: ir.Model, value: ir.Value, namer: Namer, found: dict[str, Encoding]) -> Iterator[Change]:
        dq = value.producer()
        if dq is None or not is_dequantize(dq):
            if self._is_asked:
                yield skip(value, "no DequantizeLinear writes this output")
            return
        encoding, integers = encoding_of(dq), dq.inputs[0]
        if encoding is None or encoding.axis is not None or rounding_of(dq) is None or integers is None:
            yield skip(value, "has no constant scale per tensor")
            return
        if integers.producer() is None or integers.is_graph_output():
            yield skip(value, "has the integers of an input, of a constant or of another output")
            return
        name = value.name or ""
        for index, output in enumerate(model.graph.outputs):
            if output is value:
                model.graph.outputs[index] = integers
        value.name = namer.fresh(f"{name}_DequantizeLinear_Output")
        integers.name = name
        if integers.shape is None:
            integers.shape = value.shape.copy() if value.shape is not None else None
        integers.type = ir.TensorType(encoding.dtype)
        if not value.uses():
            assert dq.graph is not None
            dq.graph.remove(dq, safe=True)
        found[name] = encoding
        yield Change("edit", name, f"goes out as {_words(encoding)}")


def _shared_encoding(nodes: Collection[ir.Node]) -> Encoding | None:
    """The one encoding per tensor of the QuantizeLinear ``nodes``; None where they differ, or one of them is something else."""
    found = {encoding_of(node) if is_quantize(node) and rounding_of(node) is not None else None for node in nodes}
    encoding = found.pop() if len(found) == 1 else None
    return encoding if encoding is not None and encoding.axis is None else None


def _words(encoding: Encoding) -> str:
    return f"{encoding.dtype.name.lower()}, scale {encoding.scale[0]:.6g}, zero point {encoding.zero_point[0]}"


def _record(model: ir.Model, found: dict[str, Encoding]) -> None:
    """Tell the runner of a decoder what the integers of its cache stand for."""
    record = DECODER.get(model.graph)
    if record is not None and found:
        DECODER.set(model.graph, replace(record, cache=tuple(_of_integers(t, found) for t in record.cache)))


def _of_integers(tensor: CacheTensor, found: dict[str, Encoding]) -> CacheTensor:
    encoding = found.get(tensor.past)
    if encoding is None or found.get(tensor.present) != encoding:
        return tensor
    return replace(tensor, scale=encoding.scale[0], zero_point=int(encoding.zero_point[0]))
