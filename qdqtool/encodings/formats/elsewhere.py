"""Which formats can hold what another refuses: a refusal names those only."""

from __future__ import annotations

import onnx_ir as ir
from qdq_passes.errors import QdqError
from qdq_passes.numerics.encoding import Encoding, integer_format, is_integer_type

from qdqtool.encodings.entries import Lpbq, Unplaced
from qdqtool.encodings.scale_axes import Values, unplace

ONE, TWO = "aimet-1.0.0", "aimet-2.0.0"
#: Storage types besides integers that version 2.0.0 has.
FLOAT8 = frozenset(ir.DataType[name] for name in ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"))


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
