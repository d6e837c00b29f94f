"""insert-qdq"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Keeps, Pass, skip
from qdq_passes.errors import UsageError
from qdq_passes.graph.annotate import ENCODING, OBSERVED, SHARED, STYLE
from qdq_passes.graph.edit import Namer
from qdq_passes.graph.operators.qdq_ops import has_pair, opset_at
from qdq_passes.graph.shapes.inference import element_types
from qdq_passes.graph.uses import QUANTIZABLE_TYPES, UNKNOWN_TYPE, all_values, dtype_of, is_constant
from qdq_passes.numerics.encoding import Encoding, integer_format, is_integer_type, parse_dtype
from qdq_passes.qdq.edit.checks import OperatorDomain, check_encoding, check_numbers, domain_named, explicit_encoding
from qdq_passes.qdq.edit.pairs import Parameters, insert_pairs, neighbour, parameters_in_place, store_integers
from qdq_passes.select.selectors import ALL, Selector, select_values


@dataclass(frozen=True)
class InsertQdq(Pass):
    """Insert a QuantizeLinear/DequantizeLinear pair on every annotated value, or on chosen values with an encoding given.

    Graph: ``t → {A, B}`` → ``t → QuantizeLinear → DequantizeLinear → {A, B}``; a weight likewise, or with ``weights=dq`` its
    integers ``w_quantized → DequantizeLinear``. Names: ``t_scale``, ``t_zero_point``, nodes ``t_QuantizeLinear`` and
    ``t_DequantizeLinear``; a graph output keeps its name, its producer writes ``t_QuantizeLinear_Input``. A value that shares the
    encoding of ``t``, whose pair is made as well, reads ``t_scale`` and ``t_zero_point`` too.
    Requires: opset 10; 13 for per-axis; 19 on float16; 21 for blocks and for types other than int8, uint8 (and int32, stored).
    Keeps: names of inputs and outputs; the numbers are quantized.
    Skips: values that have a pair already, or that are no float32, float16 or bfloat16, or of a type
        that neither the file says nor inference finds; selected values without an encoding.

    Args:
        select: the values (of those annotated; all that are annotated by default).
        weights: ``qdq`` keeps the float weight and puts a pair on it; ``dq`` stores integers; the annotation ``style`` of a
            weight says otherwise.
        scale: explicit scale(s) for the selected values instead of their annotation.
        zero_point: explicit zero point(s); 0 by default.
        dtype: storage type for explicit scales.
        axis: axis of explicit per-axis scales.
        block_size: elements of ``axis`` per explicit scale; the scales are then in C order of their shape.
        narrow: stored integers with zero point 0 leave out the most negative one: int8 stays within ±127.
        dedicated: a pair per reader (one DequantizeLinear for stored integers) instead of one for all.
        domain: whose operators are made; com.microsoft takes 16 and 4 bits at any opset.
    """

    keeps: ClassVar[Keeps] = Keeps("changes", why="values are rounded to the grid of their encoding")
    select: Selector = ALL
    weights: Literal["qdq", "dq"] = "qdq"
    scale: tuple[float, ...] = ()
    zero_point: tuple[int, ...] = ()
    dtype: str = "int8"
    axis: int | None = None
    block_size: int = 0
    narrow: bool = False
    dedicated: bool = False
    domain: OperatorDomain = "onnx"

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Insert in the order of the graph; the encoding's annotation is taken off once it is real."""
        selected = select_values(model, self.select)
        self._refuse()
        chosen = [value for value in all_values(model) if value in selected]
        types = element_types(model, [value for value in chosen if self.scale or ENCODING.get(value)])
        untyped = {value: dtype for value, dtype in types.items() if value.type is None and dtype is not None}
        for value, dtype in untyped.items():
            value.type = ir.TensorType(dtype)  # for the while: what is inserted is typed by it
        try:
            yield from self._insert(model, chosen, types)
        finally:
            for value in untyped:
                value.type = None

    def _insert(
        self, model: ir.Model, chosen: list[ir.Value], types: Mapping[ir.Value, ir.DataType | None]
    ) -> Iterator[Change]:
        work: list[tuple[ir.Value, Encoding]] = []
        for value in chosen:
            if value not in types:
                if not self.select.is_all:
                    yield skip(value, "has no encoding")
                continue
            reason = _why_not(value, types[value])
            if reason is not None or types[value] is None:
                yield skip(value, reason or UNKNOWN_TYPE)
                continue
            encoding, near = self._encoding(value), neighbour(value)
            opset = opset_at(model, near[0]) if near else model.opset_imports.get("", 1)
            check_encoding(value, encoding, opset, stored=self._is_stored(value), domain=self._domain)
            work.append((value, encoding))
        namer, shared, made = Namer(model), self._shared(work), dict[ir.Value, Parameters]()
        for value, encoding in work:
            if self._is_stored(value):
                yield from store_integers(
                    model, value, encoding, namer,
                    domain=self._domain, dedicated=self.dedicated, narrow=self._is_narrow(encoding),
                )  # fmt: skip
            else:
                owner = shared.get(value, value)
                if owner not in made:
                    made[owner] = parameters_in_place(model, owner, encoding, namer)
                yield from insert_pairs(
                    model, value, encoding, namer, domain=self._domain, dedicated=self.dedicated, given=made[owner]
                )
            for annotation in (ENCODING, STYLE, SHARED, OBSERVED):
                annotation.clear(value)

    def _shared(self, work: Sequence[tuple[ir.Value, Encoding]]) -> dict[ir.Value, ir.Value]:
        """Value → the one whose scale and zero point it uses, where both get a pair here and mean the same by it."""
        owners = {value.name: (value, encoding) for value, encoding in work if not self._is_stored(value)}
        found = {}
        for value, encoding in work if not self.scale else ():
            mark = SHARED.get(value)
            if mark is None or mark.of not in owners:
                continue
            owner, its = owners[mark.of]
            if its == encoding and dtype_of(owner) == dtype_of(value) and owner.graph is value.graph:
                found[value] = owner
        return found

    @property
    def _domain(self) -> str:
        return domain_named(self.domain)

    def _is_stored(self, value: ir.Value) -> bool:
        style = STYLE.get(value)
        return is_constant(value) and (self.weights == "dq" if style is None else style.stored)

    def _is_narrow(self, encoding: Encoding) -> bool:
        return (
            self.narrow
            and encoding.is_symmetric
            and is_integer_type(encoding.dtype)
            and integer_format(encoding.dtype)[0]
        )

    def _encoding(self, value: ir.Value) -> Encoding:
        if self.scale:
            dtype = parse_dtype(self.dtype)
            return explicit_encoding(value, self.scale, self.zero_point, dtype, self.axis, self.block_size)
        found = ENCODING.get(value)
        assert found is not None
        return found

    def _refuse(self) -> None:
        """Refuse explicit numbers that can be no encoding; the tensor is not looked at."""
        if not self.scale:
            if self.zero_point or self.axis is not None or self.block_size:
                raise UsageError("a zero point or an axis without a scale", where=self.name(), hint="give scale too")
            return
        check_numbers(self.name(), self.scale, self.zero_point, parse_dtype(self.dtype), self.axis, self.block_size)


def _why_not(value: ir.Value, dtype: ir.DataType | None) -> str | None:
    """Why ``value``, of element type ``dtype``, gets no pair, in words."""
    if has_pair(value):
        return "has a pair already"
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        return "is no tensor"
    if dtype is not None and dtype not in QUANTIZABLE_TYPES:
        return f"is {dtype.name.lower()}, which QuantizeLinear does not take"
    if value.producer() is None and not value.uses():
        return "no node reads it"
    return None
