"""Annotations: facts that passes leave on values, nodes and models for later passes.

In memory they are frozen dataclasses in ``meta``; protobuf round trips lose ``meta``, so `write_metadata` puts every
annotation into ``metadata_props`` as canonical JSON and `read_metadata` takes it back. Each annotation is defined once: here, or
beside the record it holds (`DECLARED`)."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, field
from functools import cache
from typing import Any, Generic, Protocol, TypeVar

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.uses import all_graphs, all_nodes
from qdq_passes.numerics.documents import json_of, typed
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.histogram import Histogram

T = TypeVar("T")

#: In ``metadata_props`` of a node, also of files: beside what quantizing for a target left it float.
LEFT_FLOAT = "qdqtool.left_float"


class Annotatable(Protocol):
    """What carries annotations: `ir.Value`, `ir.Node`, `ir.Graph`, `ir.Model`."""

    @property
    def meta(self) -> Any: ...
    @property
    def metadata_props(self) -> dict[str, str]: ...


@dataclass(frozen=True)
class Annotation(Generic[T]):
    """One kind of annotation.

    Args:
        key: key in ``meta`` and ``metadata_props``, prefixed ``qdqtool.``.
        to_json: dataclass → JSON-ready object.
        from_json: JSON-ready object → dataclass.
    """

    key: str
    to_json: Callable[[T], Any]
    from_json: Callable[[Any], T]

    def get(self, holder: Annotatable) -> T | None:
        """The annotation of ``holder``, or None."""
        value: T | None = holder.meta.get(self.key)
        return value

    def set(self, holder: Annotatable, value: T) -> None:
        """Annotate ``holder``."""
        holder.meta[self.key] = value

    def clear(self, holder: Annotatable) -> None:
        """Take the annotation off ``holder``, in memory and in its metadata."""
        holder.meta.pop(self.key, None)
        holder.metadata_props.pop(self.key, None)


@dataclass(frozen=True)
class Fused:
    """On a value inside a fused group: it never leaves the NPU's accumulator, so it gets no QDQ pair.

    Args:
        group: name of the group's first node.
        whole: the nodes of the group compute one operator together, so that none of them need be on the list of quantized
            operator types for the mark to hold.
    """

    group: str
    whole: bool = False


@dataclass(frozen=True)
class Part:
    """On a node: it computes one operator together with others, which an opset that has it would write as one node.

    Args:
        of: name of the group, that of its first node; `Fused` marks the values inside.
        operator: the ONNX operator that the group computes.
        weight: index of the node's input that is the operator's scale, on the one node that reads it.
        bias: likewise for the operator's bias.
    """

    of: str
    operator: str
    weight: int | None = None
    bias: int | None = None


@dataclass(frozen=True)
class Origin:
    """On a node: the names of the nodes of the original model that it stands for."""

    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Demand:
    """On a value that has an encoding: why.

    Args:
        nodes: names of the nodes that demand the encoding.
    """

    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Style:
    """On a weight or bias that has an encoding: how it is kept.

    Args:
        stored: as integers with a DequantizeLinear; else a pair stands on the float weight.
    """

    stored: bool


@dataclass(frozen=True)
class Shared:
    """On a value that has an encoding: it uses the scale and zero point of another value, the same initializers.

    Args:
        of: name of that value, which shares with no other itself.
    """

    of: str


@dataclass(frozen=True)
class Observed:
    """On an activation: its range, where it is another than the one that was observed.

    Args:
        low: smallest value to cover.
        high: largest value to cover.
    """

    low: float
    high: float


@dataclass(frozen=True)
class Calibrated(Observed):
    """On an activation: the range that calibration observed.

    Args:
        histogram: of the values, where one was kept; not part of what the range is.
    """

    histogram: Histogram | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Precision:
    """On a value: the integer type it is stored in, instead of the one that holds for all. On a node: that type, of what it
    writes; or the float type that it computes in, and then it demands no encodings.

    Args:
        dtype: ``int8``, ``uint8``, ``int16``, ``uint16``; on a node also ``float`` (the model's own), ``float16``, ``bfloat16``.
    """

    dtype: str


@dataclass(frozen=True, kw_only=True)
class Placement:
    """On a node: what runs it on a target, and why (`qdq_passes.npu.units.verdict.Verdict`).

    Args:
        device: an engine of the target, or ``"CPU"``.
        verdict: what becomes of it: ``npu-int``, ``npu-float``, ``fallback`` or ``refused``.
        rule: id of the rule that decided.
        reason: in words; may be empty.
        suggestion: what would mend it; may be empty.
        partition: number of its partition; None outside of all.
    """

    device: str
    verdict: str
    rule: str
    reason: str = ""
    suggestion: str = ""
    partition: int | None = None


def _fused_json(fused: Fused) -> dict[str, Any]:
    return {"group": fused.group, **({"whole": True} if fused.whole else {})}


def _part_json(part: Part) -> dict[str, Any]:
    return {key: value for key, value in asdict(part).items() if value is not None}


def _calibrated_json(found: Calibrated) -> dict[str, Any]:
    histogram = {} if found.histogram is None else {"histogram": found.histogram.state()}
    return {"low": found.low, "high": found.high, **histogram}


def _calibrated(data: dict[str, Any]) -> Calibrated:
    found, state = typed(Observed, data), data.get("histogram")
    return Calibrated(found.low, found.high, None if state is None else Histogram.from_state(state))


def _placement_json(placement: Placement) -> dict[str, Any]:
    return {key: value for key, value in asdict(placement).items() if value not in ("", None)}


def _of(cls: type[T]) -> Callable[[Any], T]:
    return lambda data: typed(cls, data)


ENCODING: Annotation[Encoding] = Annotation("qdqtool.encoding", Encoding.to_json, Encoding.from_json)
FUSED: Annotation[Fused] = Annotation("qdqtool.fused", _fused_json, _of(Fused))
PART: Annotation[Part] = Annotation("qdqtool.part", _part_json, _of(Part))
ORIGIN: Annotation[Origin] = Annotation("qdqtool.origin", asdict, _of(Origin))
DEMAND: Annotation[Demand] = Annotation("qdqtool.demand", asdict, _of(Demand))

STYLE: Annotation[Style] = Annotation("qdqtool.style", asdict, _of(Style))
SHARED: Annotation[Shared] = Annotation("qdqtool.shared", asdict, _of(Shared))
OBSERVED: Annotation[Observed] = Annotation("qdqtool.observed", asdict, _of(Observed))
CALIBRATED: Annotation[Calibrated] = Annotation("qdqtool.calibrated", _calibrated_json, _calibrated)
PRECISION: Annotation[Precision] = Annotation("qdqtool.precision", asdict, _of(Precision))
TARGET: Annotation[Placement] = Annotation("qdqtool.target", _placement_json, _of(Placement))
ANNOTATIONS: tuple[Annotation[Any], ...] = (
    ENCODING, FUSED, PART, ORIGIN, DEMAND, STYLE, SHARED, OBSERVED, CALIBRATED, PRECISION, TARGET,
)  # fmt: skip
#: Annotations that a subject declares beside the record they hold: module and name of each.
DECLARED = (("qdq_passes.decoder.look.record", "DECODER"),)


@cache
def annotation_kinds() -> tuple[Annotation[Any], ...]:
    """Every kind of annotation there is."""
    return *ANNOTATIONS, *(getattr(importlib.import_module(module), name) for module, name in DECLARED)


def holders(model: ir.Model) -> list[Annotatable]:
    """Everything in ``model`` that may carry annotations: nodes, their outputs, inputs, initializers; bodies included."""
    found: dict[int, Annotatable] = {}

    def add(items: Iterable[Annotatable | None]) -> None:
        for item in items:
            if item is not None:
                found.setdefault(id(item), item)

    add(all_graphs(model))
    for node in all_nodes(model):
        add([node, *node.inputs, *node.outputs])
    for graph in all_graphs(model):
        add([*graph.inputs, *graph.outputs, *graph.initializers.values()])
    return list(found.values())


def write_metadata(model: ir.Model) -> int:
    """Write every annotation of ``model`` into ``metadata_props``; returns how many were written."""
    count, kinds = 0, annotation_kinds()
    for holder in holders(model):
        for annotation in kinds:
            value = annotation.get(holder)
            if value is not None:
                text = json.dumps(annotation.to_json(value), sort_keys=True, separators=(",", ":"))
                holder.metadata_props[annotation.key] = text
                count += 1
    return count


def read_metadata(model: ir.Model, *, keep: bool = False) -> int:
    """Read annotations back from ``metadata_props`` (removing them there unless ``keep``); returns how many were read."""
    count, kinds = 0, annotation_kinds()
    for holder in holders(model):
        for annotation in kinds:
            text = holder.metadata_props.get(annotation.key)
            if text is not None:
                annotation.set(holder, annotation.from_json(json_of(text)))
                count += 1
                if not keep:
                    del holder.metadata_props[annotation.key]
    return count
