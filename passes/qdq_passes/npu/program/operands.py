"""What plans ask of operands and results: integers behind one float32 scale, shapes, the data of constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_quantize
from qdq_passes.graph.uses import constant_array, dtype_of
from qdq_passes.npu.formulas.functions import dequantized, quantized, table
from qdq_passes.npu.units.units import Operand, Result, Unit
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.encoding import Encoding, is_wide
from qdq_passes.numerics.quantize import dequantize, quantize
from qdq_passes.qdq.look.pairs import encoding_of

#: Types of the integers that kernels compute on: of data that flow, and of constants, whose 4 bits a program holds in bytes.
DATA = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16)
WEIGHTS = (*DATA, ir.DataType.INT4, ir.DataType.UINT4)
#: Largest factor of one of two float32 numbers that are added: their sum stays finite.
MOST_OF_ADDENDS = 1e30

Types = tuple[ir.DataType, ...]


class NotComputable(Exception):
    """Why no program computes a unit, in words: a normal answer, which `operators.why_not_computable` passes on."""


def source(unit: Unit, index: int = 0, *, types: Types = DATA) -> Operand:
    """Operand ``index``: integers that flow, or constants stored like them, behind one scale.

    Raises:
        NotComputable: it is left out, a float, of none of ``types``, or has a scale per index of an axis.
    """
    operand = operand_at(unit, index)
    encoding = stored(operand, types=types)
    if len(encoding.scale) != 1:
        raise NotComputable(f"{_name(operand)} is {encoding.granularity.kind}; data that flow have one scale")
    _check_step(encoding, _name(operand))
    return operand


def stored(operand: Operand, *, types: Types = DATA, blocked: bool = False) -> Encoding:
    """The encoding of ``operand``: integers of one of ``types``, of any granularity; of a scale per block where ``blocked``.

    Raises:
        NotComputable: as for `source`.
    """
    if operand.kind == "control":
        raise NotComputable(f"reads {_name(operand)}, a shape, an index or a mask")
    if operand.encoding is None or operand.dequantize is None:
        raise NotComputable(f"reads {_name(operand)} as a float")
    _check(operand.encoding, operand.dequantize, _name(operand), types, blocked=blocked)
    return operand.encoding


def target(unit: Unit, index: int = 0, *, types: Types = DATA) -> Encoding:
    """The encoding of result ``index``.

    Raises:
        NotComputable: it stays a float, has none of ``types``, or more than one scale.
    """
    return encoding_of_result(result_at(unit, index), types=types)


def encoding_of_result(result: Result, *, types: Types = DATA) -> Encoding:
    """The encoding of ``result``, see `target`."""
    if result.encoding is None or result.quantize is None or result.integers is None:
        raise NotComputable(f"writes {result.value.name} as a float")
    _check(result.encoding, result.quantize, result.value.name or "", types)
    if len(result.encoding.scale) != 1:
        raise NotComputable(f"{result.value.name} is {result.encoding.granularity.kind}; data that flow have one scale")
    _check_step(result.encoding, result.value.name or "")
    return result.encoding


def operand_at(unit: Unit, index: int) -> Operand:
    """Operand ``index`` of the core.

    Raises:
        NotComputable: it is left out.
    """
    operand = given(unit, index)
    if operand is None:
        raise NotComputable(f"has no input {index}")
    return operand


def has_wide(*operands: Operand) -> bool:
    """Whether one of ``operands`` has 16 bits, so that their products are held by the wide accumulator."""
    return any(operand.encoding is not None and is_wide(operand.encoding.dtype) for operand in operands)


def given(unit: Unit, index: int) -> Operand | None:
    """Operand ``index`` of the core, None where it is left out."""
    if index >= len(unit.operands) or unit.operands[index].kind == "absent":
        return None
    return unit.operands[index]


def result_at(unit: Unit, index: int) -> Result:
    """Result ``index``.

    Raises:
        NotComputable: nothing reads it.
    """
    if index >= len(unit.results):
        raise NotComputable("nothing reads what it writes")
    return unit.results[index]


def encoded(operand: Operand) -> Encoding:
    """The encoding of ``operand``, which has one."""
    assert operand.encoding is not None
    return operand.encoding


def step(encoding: Encoding) -> float:
    """The one scale of ``encoding``."""
    return float(encoding.scale[0])


def zero(encoding: Encoding) -> int:
    """The one zero point of ``encoding``."""
    return int(encoding.zero_point[0])


def same(a: Encoding, b: Encoding) -> bool:
    """Whether two encodings with one scale store every number alike."""
    return (a.dtype, step(a), zero(a)) == (b.dtype, step(b), zero(b))


def requantized(source: Encoding, target: Encoding, arithmetic: Arithmetic) -> npt.NDArray[Any]:
    """The table [256], in the type of ``target``, that brings integers of ``source`` to it."""
    return table(None, source, target, arithmetic).astype(target.dtype.numpy())


def brought(integers: npt.NDArray[Any], source: Encoding, target: Encoding, arithmetic: Arithmetic) -> npt.NDArray[Any]:
    """``integers`` (any shape) of ``source``, of at most 16 bits, in ``target`` and its type; as they are where both are one."""
    if same(source, target):
        return integers.astype(target.dtype.numpy())
    real = dequantized(integers, source)
    return quantized(real, target, arithmetic.rounding).astype(target.dtype.numpy())


def stored_integers(operand: Operand) -> npt.NDArray[Any]:
    """The integers of a constant ``operand``, in their type; a pair on a float constant is computed as QuantizeLinear does.

    Raises:
        NotComputable: its data are not known.
    """
    if operand.quantize is not None:
        array = constant_array(operand.quantize.inputs[0])
        if array is not None:
            return quantize(array, encoded(operand))
    array = constant_array(operand.integers)
    if array is None:
        raise NotComputable(f"{_name(operand)} is no constant")
    return array


def constant_floats(value: ir.Value) -> npt.NDArray[Any] | None:
    """The floats of a constant, stored as such or as integers behind a DequantizeLinear; None where ``value`` is computed."""
    producer = value.producer()
    if producer is None or not is_dequantize(producer):
        return constant_array(value)
    encoding, integers = encoding_of(producer), producer.inputs[0]
    before = integers.producer() if integers is not None else None
    array = constant_array(integers)
    if encoding is not None and array is None and before is not None and is_quantize(before):
        floats = constant_array(before.inputs[0])
        array = None if floats is None else quantize(floats, encoding)
    return None if array is None or encoding is None else dequantize(array, encoding)


def shape_of(operand: Operand) -> list[int | None] | None:
    """Sizes of ``operand``, None for one that is not known; None where not even their number is."""
    values = [operand.value, operand.integers, operand.quantize.inputs[0] if operand.quantize is not None else None]
    shape = next((value.shape for value in values if value is not None and value.shape is not None), None)
    return None if shape is None else [d if isinstance(d, int) else None for d in shape]


def rank_of(operand: Operand) -> int:
    """Number of dimensions of ``operand``.

    Raises:
        NotComputable: it is not known.
    """
    shape = shape_of(operand)
    if shape is None:
        raise NotComputable(f"the rank of {_name(operand)} is not known; run infer-shapes first")
    return len(shape)


def sizes_of(operand: Operand, axes: range | list[int]) -> list[int]:
    """Sizes of ``operand`` along ``axes``.

    Raises:
        NotComputable: one of them is not known, or no axis of it.
    """
    shape = shape_of(operand) or []
    found = [shape[axis] for axis in axes if -len(shape) <= axis < len(shape)]
    sizes = [size for size in found if size is not None]
    if len(sizes) != len(axes):
        raise NotComputable(f"sizes of {_name(operand)} are not known; run infer-shapes or fix-shapes first")
    return sizes


def opset_of(node: ir.Node) -> int:
    """The opset of the model of ``node``, 0 where it is not known."""
    graph = node.graph
    return graph.opset_imports.get("", 0) if isinstance(graph, ir.Graph) else 0


def check_index(value: ir.Value) -> None:
    """Nothing where ``value`` holds what kernels read as indices.

    Raises:
        NotComputable: it is of another type.
    """
    if dtype_of(value) not in (None, ir.DataType.INT64, ir.DataType.INT32):
        raise NotComputable(f"{value.name} is {_word(value)}; indices are int64 or int32")


def check_condition(value: ir.Value) -> None:
    """Nothing where ``value`` holds what kernels read as a condition.

    Raises:
        NotComputable: it is of another type.
    """
    if dtype_of(value) not in (None, ir.DataType.BOOL):
        raise NotComputable(f"{value.name} is {_word(value)}; a condition is boolean")


def no_other_output(node: ir.Node, *written: int) -> None:
    """Nothing where only the outputs ``written`` (the first, unless told) are read.

    Raises:
        NotComputable: another one is: a mean, a deviation, the indices of elements.
    """
    for index, value in enumerate(node.outputs):
        if index not in (written or (0,)) and (value.uses() or value.is_graph_output()):
            raise NotComputable(f"{value.name} is read, its output {index}, which no kernel writes")


def no_tail(unit: Unit) -> None:
    """Nothing where the operator of ``unit`` stands alone.

    Raises:
        NotComputable: something is computed behind it in the same step.
    """
    if unit.tail:
        raise NotComputable(
            f"{unit.tail[0].op_type} in one step with {unit.core.op_type} has no kernel; put a pair between"
        )


def no_references(node: ir.Node) -> None:
    """Nothing where all attributes of ``node`` are its own.

    Raises:
        NotComputable: one is that of a function.
    """
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        raise NotComputable("has attributes of its function; run inline-functions first")


def _check(encoding: Encoding, node: ir.Node, name: str, types: Types, *, blocked: bool = False) -> None:
    if encoding.dtype not in types:
        *first, last = (dtype.name.lower() for dtype in types)
        words = f"{', '.join(first)} and {last}"
        raise NotComputable(f"{name} is {encoding.dtype.name.lower()}; the simulator computes {words}")
    if encoding.block_size and not blocked:
        raise NotComputable(f"{name} has a scale per block")
    scale = node.inputs[1]
    if scale is not None and dtype_of(scale) not in (None, ir.DataType.FLOAT):
        word = np.dtype(dtype_of(scale).numpy()).name  # type: ignore[union-attr]
        raise NotComputable(f"{name} has a scale of {word}; the simulator computes float32")


def _check_step(encoding: Encoding, name: str) -> None:
    if not 0 < step(encoding) < np.inf:
        raise NotComputable(f"{name} has the scale {step(encoding):g}; one above 0 is meant")


def as_float32(name: str, *numbers: float, most: float = np.inf) -> tuple[float, ...]:
    """``numbers``, factors of the mode ``float``, rounded to float32.

    Raises:
        NotComputable: one is 0 there, or beyond ``most``.
    """
    with np.errstate(over="ignore", under="ignore"):
        found = tuple(float(np.float32(number)) for number in numbers)
    for number, kept in zip(numbers, found, strict=True):
        if not 0 < abs(kept) <= min(most, float(np.finfo(np.float32).max)):
            raise NotComputable(f"the {name} {number:.9g} does not fit float32")
    return found


def _name(operand: Operand) -> str:
    return (operand.value.name if operand.value is not None else None) or "an input"


def _word(value: ir.Value) -> str:
    dtype = dtype_of(value)
    return "of unknown type" if dtype is None else dtype.name.lower()
