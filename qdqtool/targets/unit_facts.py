"""Facts of a unit, by the names that the conditions of target files use.

    op        Conv, com.acme::FancyConv          attr.NAME   attribute, or ONNX's default for it; None where there is neither
    since     opset that the operator is of      opset       opset of its domain that the model imports
    inputs    operands of the core, a list       x, w, b     its first three (kind "absent" beyond the last)
    outputs   results of the last node           y           the first
    tail      operators computed in the same step behind it: ["Relu"]
    terms     of an Einsum, those of its equation, the result's last: ["bij", "bjk", "bik"]
    in_gelu, of_five_dimensions    see `qdqtool.targets.surroundings`
    linear    whether it multiplies an activation of two or three dimensions by a constant matrix
    heads, queries    of the Softmax of an attention; None of any other
    target    name of the target
    why_float, mend_float, mend_types, mend_shapes, mend_movement, mend_tail    texts, for reasons and suggestions: see below

Each operand and result has the fields of `qdqtool.targets.tensor_facts.TensorFacts`."""

from __future__ import annotations

import functools
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.activations import clip_bounds
from qdq_passes.graph.uses import is_standard, op_type_of
from qdq_passes.npu.units.float_causes import why_not_quantized
from qdq_passes.npu.units.units import Unit
from qdq_passes.qdq.look.biases import ROUNDINGS, product_at

from qdqtool.targets.expression import Vocabulary
from qdqtool.targets.remedies import encodings_alike, of_computed, of_float, pair_before_tail, types_alike
from qdqtool.targets.surroundings import attention_sizes, is_in_gelu, is_linear, is_of_five_dimensions
from qdqtool.targets.tensor_facts import ABSENT, TensorFacts


class Attributes:
    """Attributes of a node, with the defaults of ONNX; None where it has none of that name."""

    def __init__(self, node: ir.Node, schema: onnx.defs.OpSchema | None) -> None:
        self._node, self._schema = node, schema

    def __getattr__(self, name: str) -> Any:
        given = self._node.attributes.get(name)
        if given is not None:
            return None if given.is_ref() or given.type in _BIG else _listed(given.value)
        known = self._schema.attributes if self._schema is not None else {}
        default = known[name].default_value if name in known else None
        if default is None or default.type == onnx.AttributeProto.UNDEFINED:
            return None
        found = onnx.helper.get_attribute_value(default)
        return found.decode() if isinstance(found, bytes) else _listed(found)


@dataclass(frozen=True)
class UnitFacts:
    """A unit as conditions see it; see the head of this file.

    Args:
        unit: the unit.
        target: name of the target.
    """

    unit: Unit
    target: str

    @cached_property
    def op(self) -> str:
        return op_type_of(self.unit.core)

    @property
    def domain(self) -> str:
        return "" if self.unit.core.domain == "ai.onnx" else self.unit.core.domain

    @cached_property
    def opset(self) -> int | None:
        graph = self.unit.core.graph
        return None if graph is None else graph.opset_imports.get(self.domain)

    @cached_property
    def _schema(self) -> onnx.defs.OpSchema | None:
        if self.opset is None or not onnx.defs.has(self.unit.core.op_type, self.domain):
            return None
        try:
            return onnx.defs.get_schema(self.unit.core.op_type, self.opset, self.domain)
        except (
            onnx.defs.SchemaError
        ):  # the operator is younger than the opset: the model is wrong, and the verifier says so
            return None

    @property
    def since(self) -> int | None:
        return None if self._schema is None else self._schema.since_version

    @cached_property
    def attr(self) -> Attributes:
        return Attributes(self.unit.core, self._schema)

    @cached_property
    def inputs(self) -> list[TensorFacts]:
        return [TensorFacts.of_operand(operand) for operand in self.unit.operands]

    @cached_property
    def outputs(self) -> list[TensorFacts]:
        return [TensorFacts.of_result(result) for result in self.unit.results]

    @property
    def x(self) -> TensorFacts:
        return self._input(0)

    @property
    def w(self) -> TensorFacts:
        return self._input(1)

    @property
    def b(self) -> TensorFacts:
        return self._input(2)

    @property
    def y(self) -> TensorFacts:
        return self.outputs[0] if self.outputs else ABSENT

    @cached_property
    def tail(self) -> list[str]:
        return [op_type_of(node) for node in self.unit.tail]

    @cached_property
    def tail_absorbed(self) -> bool:
        """Whether the tail does nothing that storing the output does not do: a Relu or Clip whose bounds its range keeps."""
        for node in self.unit.tail:
            low, high = self.y.low, self.y.high
            if low is None or high is None or not is_standard(node, "Relu", "Clip"):
                return False
            bounds = clip_bounds(node) if node.op_type == "Clip" else (0.0, None)
            if (bounds[0] is not None and low < bounds[0]) or (bounds[1] is not None and high > bounds[1]):
                return False
        return True

    @cached_property
    def terms(self) -> list[str] | None:
        """Of an equation with an arrow; None otherwise."""
        equation = self.attr.equation
        if not isinstance(equation, str) or equation.count("->") != 1:
            return None
        return equation.replace(" ", "").replace("->", ",").split(",")

    @cached_property
    def in_gelu(self) -> bool:
        return is_in_gelu(self.unit.core)

    @cached_property
    def of_five_dimensions(self) -> bool:
        return is_of_five_dimensions(self.unit.core)

    @cached_property
    def linear(self) -> bool:
        return is_linear(self.unit.core)

    @cached_property
    def _scores(self) -> list[int | None] | None:
        return attention_sizes(self.unit.core)

    @property
    def heads(self) -> int | None:
        """How many heads the Softmax of an attention takes at once; 1 where scores have three dimensions."""
        return None if self._scores is None else 1 if len(self._scores) == 3 else self._scores[-3]

    @property
    def queries(self) -> int | None:
        """Rows of scores of each head."""
        return None if self._scores is None else self._scores[-2]

    @cached_property
    def float_inputs(self) -> list[int]:
        """Indices of the inputs that are data and not integers behind a constant encoding."""
        return [i for i, t in enumerate(self.inputs) if t.kind not in ("control", "absent") and not t.quantized]

    @cached_property
    def float_outputs(self) -> list[int]:
        """Likewise of the outputs."""
        return [i for i, t in enumerate(self.outputs) if t.kind == "float"]

    @property
    def quantized(self) -> bool:
        """Whether all data it reads and writes are integers behind constant encodings; not of what has none."""
        return not self.float_inputs and not self.float_outputs

    @cached_property
    def why_float(self) -> str:
        """In words, why it is not `quantized`: ``reads x as a float``; empty where it is."""
        return why_not_quantized(self.unit)

    @cached_property
    def mend_float(self) -> str:
        """What would mend that, with the commands in backticks; empty where it is `quantized`."""
        return of_float(self.unit, self.target)

    @cached_property
    def mend_types(self) -> str:
        """What would store all that it reads and writes in one type; empty where it is so."""
        return types_alike(self.unit)

    @cached_property
    def mend_shapes(self) -> str:
        """What would make shapes static, and compute what hangs on them."""
        return of_computed(self.unit)

    @cached_property
    def mend_movement(self) -> str:
        """What would give its results the encoding of its input."""
        return encodings_alike(self.unit)

    @cached_property
    def mend_tail(self) -> str:
        """What would put a pair between the operator and its tail; empty without one."""
        return pair_before_tail(self.unit)

    @cached_property
    def bias_is_product_scale(self) -> bool | None:
        """Whether the bias is int32 at the scale s_x·s_w with zero point 0; None without a quantized bias."""
        have = self.b.encoding if self.b.kind == "bias" else None
        if have is None:
            return None
        wanted = product_at(self.unit.core, 2)
        if isinstance(wanted, str) or have.dtype != ir.DataType.INT32 or not have.is_symmetric or have.block_size:
            return False
        if len(have.scale) != len(wanted.scale) and 1 not in (len(have.scale), len(wanted.scale)):
            return False
        return bool(np.allclose(have.scale, wanted.scale, rtol=ROUNDINGS * float(np.finfo(np.float32).eps), atol=0))

    def _input(self, index: int) -> TensorFacts:
        return self.inputs[index] if index < len(self.inputs) else ABSENT


#: Names of facts; attributes of ``attr`` are any that an operator of ONNX has.
_NAMES = (
    "op", "domain", "opset", "since", "tail", "tail_absorbed", "inputs", "outputs", "float_inputs", "float_outputs",
    "quantized", "why_float", "mend_float", "mend_types", "mend_shapes", "mend_movement", "mend_tail", "bias_is_product_scale",
    "target", "terms", "in_gelu", "of_five_dimensions", "linear", "heads", "queries",
)  # fmt: skip

_BIG = (ir.AttributeType.TENSOR, ir.AttributeType.TENSORS, ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


class _Anything(frozenset[str]):
    """The attributes of an operator that we do not know: any."""

    def __contains__(self, name: object) -> bool:
        return True


def vocabulary(op_types: tuple[str, ...] = ()) -> Vocabulary:
    """What conditions on operators of ``op_types`` may name: of ``attr`` the attributes they have in any opset; without types
    those of all of ONNX's operators."""
    known = _attributes()
    foreign = any(op_type not in known for op_type in op_types)
    of_types = frozenset[str]().union(*(known.get(op_type, ()) for op_type in op_types or known))
    tensors = dict.fromkeys(("x", "w", "b", "y"), TensorFacts.FIELDS)
    names: dict[str, Any] = {**dict.fromkeys(_NAMES, ()), **tensors, "attr": _Anything() if foreign else of_types}
    return Vocabulary(names=names, elements=TensorFacts.FIELDS)


@functools.cache
def _attributes() -> dict[str, frozenset[str]]:
    """Operators of ONNX's default domain with the attributes they have in any opset."""
    found: dict[str, frozenset[str]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            found[schema.name] = found.get(schema.name, frozenset()) | frozenset(schema.attributes)
    return found


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | list) else value
