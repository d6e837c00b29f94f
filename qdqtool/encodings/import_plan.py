"""Plan an import: the encodings that a file has for the values of a model, with the hints about their pairs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping
from dataclasses import field
from functools import cached_property
from typing import Any

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.encode.annotate_encodings import is_inside_group
from qdq_passes.encode.look.demands import QUANTIZED_OPS, Demands, Role, demands_of, why_not_quantizable
from qdq_passes.fuse.fuse_conv_activation import FuseConvActivation
from qdq_passes.graph.annotate import FUSED
from qdq_passes.graph.operators.qdq_ops import has_pair
from qdq_passes.graph.uses import is_constant, main_nodes
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.qdq.edit.pairs import can_hand_over

from qdqtool.encodings.alignment import Alignment
from qdqtool.encodings.entries import Convert, Encodings, Entry, Float, Json, Lpbq, Wish
from qdqtool.encodings.hints import TensorHint, Weights, default_hint, from_json
from qdqtool.encodings.reading import encoding_for
from qdqtool.encodings.tensors import place, values_by_name


@dataclass
class ImportPlan:
    """The encodings that the values of a model will get, while they are put together.

    Args:
        model: the float model; not edited until everything is known.
        file: the encodings.
        alignment: which tensor each name of the file means.
        weights: the style of weights that the caller wants, None for that of the file.
        use_hints: whether hints in the file count.
        chosen: encodings.
        seconds: second encodings for some readers.
        hints: pairs that are not what `insert-qdq` makes.
        lpbq: factors of scales, where the file gives them.
        wishes: what the file asks for without giving it.
        floats: what the file leaves float.
        filled: name → where its encoding came from, for those that the file has not.
        declined: (name, reason) of those that the file has and that stay float.
        notes: what else is odd.
    """

    model: ir.Model
    file: Encodings
    alignment: Alignment
    weights: Weights | None = None
    use_hints: bool = True
    chosen: dict[ir.Value, Encoding] = field(default_factory=dict)
    seconds: dict[ir.Value, Convert] = field(default_factory=dict)
    hints: dict[ir.Value, TensorHint] = field(default_factory=dict)
    lpbq: dict[ir.Value, Lpbq] = field(default_factory=dict)
    wishes: dict[ir.Value, Wish] = field(default_factory=dict)
    floats: dict[ir.Value, None] = field(default_factory=dict)
    filled: dict[str, str] = field(default_factory=dict)
    declined: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def file_weights(self) -> Weights:
        """How the model that the file was made of keeps its weights."""
        return "qdq" if self.use_hints and self.file.hints.get("weights") == "qdq" else "dq"

    @property
    def style(self) -> Weights:
        """How weights are kept here, unless a hint says otherwise."""
        return self.weights or self.file_weights

    @cached_property
    def demanded(self) -> list[Missing]:
        """Everything that operators want quantized."""
        return missing_encodings(self.model, ())

    def missing(self) -> list[Missing]:
        """What of it has no encoding so far."""
        return [one for one in self.demanded if one.value not in self.chosen and one.value not in self.floats]

    def fill(self, value: ir.Value, encoding: Encoding, source: str) -> None:
        """Give ``value`` an encoding that the file has not."""
        self.chosen[value] = encoding
        self.filled[value.name or ""] = source

    def hint(self, value: ir.Value, entry: Entry, data: Json) -> TensorHint:
        """What the file hints at, in the style of weights that the caller wants."""
        is_stored = _is_stored(value, entry, self.file_weights)
        default = functools.partial(_default, value)
        hint = default(is_stored) if data is None else from_json(entry.name, data, default, is_stored=is_stored)
        if not _fits(hint, value):
            self.notes.append(f"{value.name} is no longer what the hints about it say; they are not used")
            hint = dataclasses.replace(default(is_stored), dtype=hint.dtype, axis=hint.axis)
        wanted = self.plain_hint(value, entry)
        if self.weights is None or (hint.stored is None) == (wanted.stored is None):
            return hint
        integers = hint.integers if wanted.stored is not None else ()
        return dataclasses.replace(wanted, dtype=hint.dtype, axis=hint.axis, integers=integers)

    def plain_hint(self, value: ir.Value, entry: Entry) -> TensorHint:
        """The pairs that `insert-qdq` makes on ``value``."""
        return _default(value, _is_stored(value, entry, self.style))


def plan_import(
    model: ir.Model, file: Encodings, alignment: Alignment, *, weights: Weights | None, use_hints: bool
) -> ImportPlan:
    """Find the values of the names in ``file``, and their encodings.

    Raises:
        UnsupportedError: the axis of an encoding cannot be told, or ONNX cannot hold it.
        ModelError: as many scales as do not fit a tensor; broken hints.
    """
    found = ImportPlan(model, file, alignment, weights, use_hints)
    values, opset = values_by_name(model), model.opset_imports.get("", 1)
    tensors = file.hints.get("tensors")
    hinted = tensors if isinstance(tensors, Mapping) and use_hints else {}
    for entry in file.entries:
        match = alignment.matches[entry.name]
        if match.tensor is None:
            continue
        value = values[match.tensor]
        if isinstance(entry.holds, Float):
            found.floats[value] = None
            continue
        reason = "has a pair already" if has_pair(value) else why_not_quantizable(value, opset)
        if reason is not None:
            found.declined.append((match.tensor, reason))
            continue
        if entry.role is not None and (entry.role == "param") != is_constant(value):
            found.notes.append(_wrong_section(entry, value))
        hint = found.hint(value, entry, hinted.get(entry.name))
        encoding = encoding_for(entry, value, hint)
        if encoding is None:
            assert isinstance(entry.holds, Wish)
            found.wishes[value] = entry.holds
            continue
        found.chosen[value] = encoding
        placed = place(entry.holds, value)
        if isinstance(placed, Lpbq):
            found.lpbq[value] = placed
        if entry.convert is not None:
            found.seconds[value] = entry.convert
        if dataclasses.replace(hint, dtype=None, axis=None) != found.plain_hint(value, entry):
            found.hints[value] = hint
    return found


def _wrong_section(entry: Entry, value: ir.Value) -> str:
    word = "a constant" if is_constant(value) else "no constant"
    return f"{entry.name} stands among the {entry.role} encodings and is {word}; SNPE ignores such entries"


def _fits(hint: TensorHint, value: ir.Value) -> bool:
    """Whether integers can be stored, come in and go out where ``hint`` says so."""
    comes_in = any(pair.q is None for pair in hint.pairs) and hint.stored is None
    goes_out = any(pair.output for pair in hint.pairs)
    return (
        (hint.stored is None or (is_constant(value) and value.graph is not None))
        and (not comes_in or (value.is_graph_input() and not value.is_initializer()))
        and (not goes_out or can_hand_over(value))
    )


def _default(value: ir.Value, stored: bool) -> TensorHint:
    return default_hint(value.name or "", stored=stored, is_output=can_hand_over(value))


def _is_stored(value: ir.Value, entry: Entry, weights: Weights) -> bool:
    is_int32 = getattr(entry.holds, "dtype", None) == ir.DataType.INT32
    return is_constant(value) and (weights == "dq" or is_int32)


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A tensor without an encoding.

    Args:
        value: the tensor.
        role: what it is to those who want it quantized.
        nodes: names of those.
        fused: it lies between a layer and its activation, where no encoding belongs.
    """

    value: ir.Value
    role: Role
    nodes: tuple[str, ...]
    fused: bool = False

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"tensor": self.value.name, "role": self.role, "nodes": list(self.nodes)}


def missing_encodings(model: ir.Model, encoded: Collection[ir.Value]) -> list[Missing]:
    """The tensors that operators of the main graph demand and that are not in ``encoded``, in the order of the graph."""
    demands = demands_of(model, set(QUANTIZED_OPS), set(main_nodes(model)))
    fused = _fused(model, demands)
    return [
        Missing(value=value, role=demands.role(value), nodes=nodes, fused=value in fused)
        for value, nodes in demands.items()
        if value not in encoded
    ]


def _fused(model: ir.Model, demands: Demands) -> set[ir.Value]:
    """Values inside a layer with its activation; the marks are taken off again."""
    had = {value: mark for value in demands.nodes if (mark := FUSED.get(value)) is not None}
    list(FuseConvActivation().run(model))
    found = {value for value, nodes in demands.items() if is_inside_group(value, nodes)}
    for node in main_nodes(model):
        for value in node.outputs:
            if value not in had:
                FUSED.clear(value)
    return found
