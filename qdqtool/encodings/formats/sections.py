"""What formats of encodings files share: which section a tensor belongs to, the summary of settings, and which other formats
hold what one refuses."""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir
from qdq_passes.errors import QdqError
from qdq_passes.graph.uses import is_constant
from qdq_passes.numerics.encoding import Encoding, integer_format, is_integer_type

from qdqtool.encodings.entries import Encodings, Entry, Json, Lpbq, Role, Unplaced
from qdqtool.encodings.tensors import Values, unplace

ONE, TWO = "aimet-1.0.0", "aimet-2.0.0"
#: Storage types besides integers that version 2.0.0 has.
FLOAT8 = frozenset(ir.DataType[name] for name in ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"))


def role_of(entry: Entry, values: Values | None) -> Role:
    """The section of ``entry``: by the model, where it is there; else as it was read; else what has channels is a parameter."""
    value = values.get(entry.name) if values is not None else None
    if value is not None:
        return "param" if is_constant(value) else "activation"
    if entry.role is not None:
        return entry.role
    holds = entry.holds
    has_channels = isinstance(holds, Unplaced | Lpbq) or (isinstance(holds, Encoding) and holds.axis is not None)
    return "param" if has_channels else "activation"


def summary(encodings: Encodings, values: Values | None) -> dict[str, Json]:
    """``quantizer_args``: the commonest bits of activations and parameters, and how parameters are laid out.

    AIMET notes in it how its simulation was set up; readers take it as a remark.
    """
    bits: dict[Role, Counter[int]] = {"activation": Counter(), "param": Counter()}
    symmetric = per_channel = False
    for entry in encodings.entries:
        holds, role = entry.holds, role_of(entry, values)
        if isinstance(holds, Encoding | Lpbq | Unplaced) and is_integer_type(holds.dtype):
            signed, width = integer_format(holds.dtype)
            bits[role][width] += 1
            if role == "param":
                symmetric |= signed
                per_channel |= not (isinstance(holds, Encoding) and holds.axis is None)
    commonest = {f"{role}_bitwidth": found.most_common(1)[0][0] for role, found in bits.items() if found}
    return {
        **commonest,
        "dtype": "int",
        "is_symmetric": symmetric,
        "per_channel_quantization": per_channel,
    }


def for_type(dtype: ir.DataType) -> str:
    """What holds a scale for ``dtype``: 2.0.0 has every integer type, and float8."""
    return TWO if is_integer_type(dtype) or dtype in FLOAT8 else "no format at all: none has it"


def for_blocks(name: str, holds: Encoding | Unplaced | Lpbq, values: Values | None) -> str:
    """What holds blocks, or fractions of zero points: 1.0.0 where readers find the axis that it leaves out, 2.0.0 where it is
    known."""
    if not is_integer_type(holds.dtype):
        return for_type(holds.dtype)
    if isinstance(holds, Unplaced) or (holds.axis is None and isinstance(holds, Lpbq)):
        return f"{ONE}, or {TWO} with --model, which tells the axis"
    if isinstance(holds, Lpbq) and holds.bits != 2 * integer_format(holds.dtype)[1]:
        return ONE
    try:
        unplace(name, holds, values, ONE, TWO)
    except QdqError:
        return TWO
    return f"{ONE} or {TWO}"
