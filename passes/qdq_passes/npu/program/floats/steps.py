"""Plans of units in floating point: the steps that a program takes, written down before anything is changed.

A step reads values of the model as they are, constants, and what steps before it wrote. Kernels round what they read, so the plan
rounds nothing but constants and what is only moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantize
from qdq_passes.graph.uses import dtype_of
from qdq_passes.npu.formulas.floats import TYPES, rounded
from qdq_passes.npu.program.edit import Attribute, Attributes
from qdq_passes.npu.program.operands import DATA, NotComputable, constant_floats, no_references, opset_of, shape_of
from qdq_passes.npu.program.operator import floating
from qdq_passes.npu.units.units import Operand, Unit, operands_of
from qdq_passes.numerics.arithmetic import Arithmetic, Precision
from qdq_passes.numerics.arrays import Array
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.qdq.look.pairs import encoding_of

#: Types of floats that kernels read and write.
FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)

#: First opset in which what an operator is steered by are inputs.
INPUTS_SINCE = {"Pad": 11, "Reshape": 5}

#: What rounds what it reads, and what brings floats to integers.
ROWS = (
    floating("FloatCast", (1, 1)),
    floating(
        "Quantize", (1, 1), rounding=str, overflow=str, zero_point_first=int, y_zero_point=int, y_scale=float
    ),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Made:
    """What step ``step`` writes as its output ``index``, of type ``dtype``."""

    step: int
    index: int
    dtype: ir.DataType


@dataclass(frozen=True, eq=False)
class Constant:
    """Data that are made when they are written: called ``<node>_<what>``."""

    what: str
    make: Callable[[], Array]
    dtype: ir.DataType


Source = ir.Value | Made | Constant | None
Handler = Callable[["Steps", ir.Node], list[Source]]
#: (domain, operator) → what writes it down.
Handlers = Mapping[tuple[str, str], Handler]


@dataclass(frozen=True, eq=False, kw_only=True)
class Step:
    """One operator of the program.

    Args:
        op_type: ``"FloatMatMul"`` of ai.qdqtool, ``"::Transpose"`` of the default domain.
        inputs: what it reads.
        attributes: what it says.
        dtype: of its outputs.
        count: of its outputs.
        like: a value with the shape of its output, where one is known.
    """

    op_type: str
    inputs: tuple[Source, ...]
    attributes: Attributes | Sequence[ir.Attr]
    dtype: ir.DataType
    count: int = 1
    like: ir.Value | None = None


class Steps:
    """The steps of one unit, as they are found.

    Args:
        unit: the unit.
        arithmetic: of the target.
    """

    def __init__(self, unit: Unit, arithmetic: Arithmetic) -> None:
        self.unit, self.arithmetic = unit, arithmetic
        self.steps: list[Step] = []
        self.written: dict[ir.Value, Source] = {}

    @property
    def precision(self) -> Precision:
        """What numbers are rounded to."""
        return self.arithmetic.float_precision

    @property
    def opset(self) -> int:
        """Of the model."""
        return opset_of(self.unit.core)

    def operand(self, node: ir.Node, index: int) -> Operand:
        """Input ``index`` of ``node``.

        Raises:
            NotComputable: it is left out.
        """
        if not self.has(node, index):
            raise NotComputable(f"has no input {index}")
        return operands_of(node)[index]

    def has(self, node: ir.Node, index: int) -> bool:
        """Whether ``node`` has input ``index``."""
        return index < len(node.inputs) and node.inputs[index] is not None

    def read(self, node: ir.Node, index: int, turn: Callable[[Array], Array] = lambda a: a, what: str = "") -> Source:
        """Input ``index`` of ``node`` as floats; ``turn`` is applied to a constant, whatever is done to others must be a step.

        Raises:
            NotComputable: it is left out, of a type that kernels do not read, or behind an encoding that they do not know.
        """
        operand = self.operand(node, index)
        value = operand.value
        assert value is not None
        if value in self.written:
            return self.written[value]
        dtype = float_type(value)
        if operand.constant:
            stored, precision = ir.DataType.from_numpy(np.dtype(TYPES[self.precision])), self.precision

            def make() -> Array:
                return np.ascontiguousarray(turn(rounded(_known(value), precision))).astype(TYPES[precision])

            return Constant(what or f"constant_{index}", make, stored)
        if operand.dequantize is not None:
            _check_dequantize(operand.dequantize)
        if dtype not in FLOATS:
            raise NotComputable(f"reads {value.name} of type {dtype.name.lower() if dtype else 'unknown'}")
        return value

    def step(
        self,
        op_type: str,
        *inputs: Source,
        dtype: ir.DataType,
        attributes: Attributes | None = None,
        like: ir.Value | None = None,
    ) -> Made:
        """An operator of ai.qdqtool in floating point; returns what it writes."""
        stated = {**(attributes or {}), "precision": self.precision, "y_type": int(dtype)}
        return self._add(Step(op_type=op_type, inputs=inputs, attributes=stated, dtype=dtype, like=like))[0]

    def write(self, node: ir.Node, op_type: str, *inputs: Source, **attributes: Attribute) -> list[Source]:
        """What ``node`` becomes, as one `step`: it writes numbers of the type and shape that ``node`` does."""
        return [self.step(op_type, *inputs, dtype=type_of(node), attributes=attributes, like=node.outputs[0])]

    def move(
        self,
        op_type: str,
        *inputs: Source,
        dtype: ir.DataType,
        attributes: Attributes | Sequence[ir.Attr] = (),
        count: int = 1,
    ) -> list[Made]:
        """A standard operator.

        Raises:
            NotComputable: the model's opset wrote it with attributes instead of inputs.
        """
        if self.opset < INPUTS_SINCE.get(op_type, 0):
            raise NotComputable(f"{op_type} of opset {self.opset} takes attributes; run convert-opset")
        return self._add(Step(op_type=f"::{op_type}", inputs=inputs, attributes=attributes, dtype=dtype, count=count))

    def rounded(self, node: ir.Node, index: int) -> Source:
        """Input ``index`` of ``node`` rounded, in its own type: what a movement reads."""
        source = self.read(node, index)
        dtype = float_type(node.inputs[index])
        if isinstance(source, Made):
            return source
        assert dtype is not None
        if isinstance(source, Constant):
            make, stored = source.make, dtype.numpy()
            return Constant(source.what, lambda: make().astype(np.float32).astype(stored), dtype)
        return (
            source
            if self.precision == "float32"
            else self.step("FloatCast", source, dtype=dtype, like=node.inputs[index])
        )

    def control(self, node: ir.Node, index: int) -> ir.Value | None:
        """Input ``index`` of ``node`` as it is: a shape, indices, a condition."""
        return node.inputs[index] if self.has(node, index) else None

    def shape(self, node: ir.Node, index: int) -> list[int | None] | None:
        """Sizes of input ``index``; None where not even their number is known."""
        return shape_of(self.operand(node, index))

    def rank(self, node: ir.Node, index: int = 0) -> int:
        """Number of dimensions of input ``index``.

        Raises:
            NotComputable: it is not known.
        """
        shape = self.shape(node, index)
        if shape is None:
            raise NotComputable("the rank of what it reads is not known; run infer-shapes first")
        return len(shape)

    def _add(self, step: Step) -> list[Made]:
        self.steps.append(step)
        return [Made(len(self.steps) - 1, index, step.dtype) for index in range(step.count)]


def float_type(value: ir.Value | None) -> ir.DataType | None:
    """The type of ``value``: of what is dequantized that of its scale."""
    if value is None:
        return None
    producer = value.producer()
    if producer is not None and is_dequantize(producer) and producer.inputs[1] is not None:
        return dtype_of(producer.inputs[1]) or ir.DataType.FLOAT
    return dtype_of(value)


def type_of(node: ir.Node, index: int = 0) -> ir.DataType:
    """The float type of input ``index``, which is that of the outputs.

    Raises:
        NotComputable: it is none that kernels know.
    """
    dtype = float_type(node.inputs[index])
    if dtype not in FLOATS:
        raise NotComputable(
            f"{node.op_type} on {dtype.name.lower() if dtype else 'an unknown type'} has no kernel in floating point"
        )
    return dtype


def constant_of(node: ir.Node, index: int) -> Array | None:
    """The numbers of input ``index`` of ``node`` where it is a constant."""
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if value is None else constant_floats(value)


def quantizers_of(value: ir.Value) -> list[tuple[ir.Node, Encoding]]:
    """The QuantizeLinear nodes with known scales that read ``value``: the NPU computes them with it.

    Raises:
        NotComputable: one writes what kernels do not know.
    """
    found = []
    for use in value.uses():
        if use.idx == 0 and is_quantize(use.node) and (encoding := encoding_of(use.node)) is not None:
            check_written(encoding, value.name or "")
            found.append((use.node, encoding))
    return found


def check_written(encoding: Encoding, name: str) -> None:
    """Nothing where a Quantize writes ``encoding``.

    Raises:
        NotComputable: it does not.
    """
    if encoding.dtype not in DATA:
        raise NotComputable(f"{name} is {encoding.dtype.name.lower()}; the simulator writes integers of 8 and 16 bits")
    if len(encoding.scale) != 1:
        raise NotComputable(f"{name} is {encoding.granularity.kind}; data that flow have one scale")


def check_attributes(unit: Unit) -> None:
    """Nothing where the attributes of all nodes of ``unit`` are their own.

    Raises:
        NotComputable: one is that of a function.
    """
    for node in unit.nodes:
        no_references(node)


def _known(value: ir.Value) -> Array:
    found = constant_floats(value)
    if found is None:
        raise NotComputable(f"{value.name} is no constant")
    return found


def _check_dequantize(node: ir.Node) -> None:
    integers, scale = node.inputs[0], node.inputs[1]
    dtype = None if integers is None else dtype_of(integers)
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        dtype = dtype_of(node.inputs[2]) or dtype
    if dtype not in DATA:
        word = "of unknown type" if dtype is None else dtype.name.lower()
        raise NotComputable(f"reads integers that are {word}; the simulator dequantizes 8 and 16 bits where data flow")
    if node.attributes.get_int("block_size", 0):
        raise NotComputable("reads data with a scale per block")
    if scale is not None and dtype_of(scale) not in (None, ir.DataType.FLOAT):
        raise NotComputable("reads integers with a scale that is not float32")
