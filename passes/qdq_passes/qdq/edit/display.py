"""What viewers show of a node or a value: metadata, a description, the names in a quantization annotation.

Netron 9 shows the metadata of nodes, of graph inputs and of graph outputs; of every other value its description and its entry
in ``graph.quantization_annotation``, and neither where the value has no type (read in its sources and seen in a browser).
What is written here is told from what the file had by `PREFIX` and `LINE`, so that it can be written anew or taken away."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import field

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass

#: What the keys of our metadata begin with, and what our lines of a description begin with.
PREFIX, LINE = "qdq.", "encoding: "
#: Where onnx_ir keeps a value's entry of ``graph.quantization_annotation``, and the keys that ONNX names for it.
ANNOTATION, SCALE, ZERO_POINT = "quant_parameter_tensor_names", "SCALE_TENSOR", "ZERO_POINT_TENSOR"


@dataclass
class Notes:
    """What is to be written on one node or value.

    Args:
        rows: key of the metadata, without prefix → what it says.
        lines: lines of the description.
        tensors: entry of the quantization annotation, one for each encoding; several that differ leave it out.
        dtype: element type of a value, for one that has no type.
    """

    rows: dict[str, list[str]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    tensors: list[dict[str, str]] = field(default_factory=list)
    dtype: ir.DataType | None = None

    def add(self, rows: dict[str, str]) -> None:
        """Add rows; a key that has several things to say says each once."""
        for key, text in rows.items():
            if text not in self.rows.setdefault(key, []):
                self.rows[key].append(text)


def is_described(holders: Iterable[ir.Node | ir.Value]) -> bool:
    """Whether any of ``holders`` bears metadata of `describe-encodings`."""
    return any(key.startswith(PREFIX) for holder in holders for key in holder.metadata_props)


def forget_tensors(value: ir.Value, names: Collection[str]) -> None:
    """Take those of ``names`` out of the quantization annotation of ``value``: they are no tensors of its any more."""
    old = dict(value.meta.get(ANNOTATION, {}))
    new = {key: name for key, name in old.items() if name not in names}
    if new:
        value.meta[ANNOTATION] = new
    elif old:
        del value.meta[ANNOTATION]


def write_notes(holder: ir.Node | ir.Value, notes: Notes) -> bool:
    """Write ``notes``, in place of what an earlier run wrote; whether anything is another now."""
    props = holder.metadata_props
    old = {key: text for key, text in props.items() if key.startswith(PREFIX)}
    new = {PREFIX + key: "; ".join(texts) for key, texts in notes.rows.items()}
    is_new = old != new
    if is_new:
        for key in old:
            del props[key]
        props.update(new)
    if isinstance(holder, ir.Value) and (old or new):
        is_new |= _write_description(holder, notes.lines)
        is_new |= _write_annotation(holder, notes.tensors)
        is_inside = not (holder.is_graph_input() or holder.is_graph_output())
        if holder.type is None and notes.dtype is not None and is_inside:
            holder.type = ir.TensorType(notes.dtype)
            is_new = True
    return is_new


def _write_description(value: ir.Value, lines: list[str]) -> bool:
    old = value.doc_string or ""
    kept = [line for line in old.split("\n") if line and not line.startswith(LINE)]
    text = "\n".join([*kept, *(LINE + line for line in lines)])
    if text == old:
        return False
    value.doc_string = text or None
    return True


def _write_annotation(value: ir.Value, entries: list[dict[str, str]]) -> bool:
    """Name scale and zero point; neither where several encodings name several."""
    old = dict(value.meta.get(ANNOTATION, {}))
    new = {key: name for key, name in old.items() if key not in (SCALE, ZERO_POINT)}
    if entries and all(entry == entries[0] for entry in entries):
        new |= entries[0]
    if new == old:
        return False
    if new:
        value.meta[ANNOTATION] = new
    else:
        del value.meta[ANNOTATION]
    return True
