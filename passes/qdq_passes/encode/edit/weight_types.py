"""Which type a weight is stored as, by the operators that read it: ``LayerNormalization:uint8``, ``*:activation``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from qdq_passes.errors import UsageError
from qdq_passes.graph.operators.channels import Use
from qdq_passes.numerics.encoding import is_integer_type, parse_dtype

#: Stands for every operator type without an entry of its own.
OTHERS = "*"
#: Type and symmetry of the activations.
LIKE_ACTIVATIONS = "activation"

_ENTRY = re.compile(r"(\*|[A-Za-z]\w*):(\w+)")


def parse_weight_types(entries: Iterable[str]) -> dict[str, ir.DataType | None]:
    """Operator type → storage type of the weights it reads, None for that of activations, of entries ``"Conv:int8"``.

    Raises:
        UsageError: an entry that cannot be read, a type that stores no integers, an operator named twice.
    """
    found: dict[str, ir.DataType | None] = {}
    for entry in entries:
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise UsageError(
                f"weight-types entry {entry!r} cannot be read", hint="write Conv:int8, or *:activation for all others"
            )
        op_type, dtype = match[1], None if match[2] == LIKE_ACTIVATIONS else parse_dtype(match[2])
        if dtype is not None and not is_integer_type(dtype):
            raise UsageError(f"{entry}: weights are stored as integers", hint="for example int8, uint8, int16, int4")
        if op_type in found:
            raise UsageError(f"weight-types names {op_type} twice", hint="one type an operator type")
        found[op_type] = dtype
    return found


def weight_type(
    uses: Sequence[Use], types: Mapping[str, ir.DataType | None], default: ir.DataType
) -> tuple[ir.DataType | None, str]:
    """Storage type of a weight (None: like activations), and a remark where its readers disagree (else ``""``).

    Args:
        uses: the readers that demand an encoding of it.
        types: of `parse_weight_types`.
        default: type of what no entry is about, and of a weight whose readers disagree.
    """
    asked = {node.op_type: types.get(node.op_type, types.get(OTHERS, default)) for node, _ in uses}
    kinds = set(asked.values())
    if len(kinds) > 1:
        shown = ", ".join(f"{op} ({LIKE_ACTIVATIONS if t is None else t.name.lower()})" for op, t in asked.items())
        return default, f"{default.name.lower()}, as its readers disagree: {shown}"
    return (kinds.pop() if kinds else default), ""
