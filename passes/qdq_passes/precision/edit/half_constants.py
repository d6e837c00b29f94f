"""Constants in half precision: what float16 and bfloat16 can hold of them.

float16 ends at 65504, bfloat16 at 3.39e38, below float32's 3.40e38. Attention masks lie beyond: added to scores or chosen by a
Where, −3.4e38 means the same as the lowest number there is. A bound of Clip, Min or Max that cannot be reached bounds nothing."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdq_passes.graph.uses import is_standard

#: Operators of masks, and of bounds: beyond the range of the type they mean its end.
_MASKING = ("Add", "Sub", "Where", "Pad")
_BOUNDING = ("Clip", "Max", "Min")
#: From here on a factor is that of a mask, (1 − m)·−1e9, not one of arithmetic.
_MASK_FACTOR = -1e4


def in_half(array: npt.NDArray[Any], dtype: ir.DataType, node: ir.Node) -> tuple[npt.NDArray[Any], str] | str:
    """``array`` as ``dtype`` for its reader ``node``, and a remark (``""`` for none); a text says why it cannot be.

    Args:
        array: any shape.
        dtype: FLOAT16, BFLOAT16 or FLOAT.
        node: the node that reads it.
    """
    limits = ml_dtypes.finfo(dtype.numpy())  # type: ignore[no-untyped-call]
    lowest, highest = float(limits.min), float(limits.max)
    with np.errstate(over="ignore"):
        cast = array.astype(dtype.numpy())
    lost = np.isfinite(array) & ~np.isfinite(cast.astype(np.float32))
    if not lost.any():
        return cast, ""
    beyond = array[lost]
    name, extreme = dtype.name.lower(), float(beyond[np.argmax(np.abs(beyond.astype(np.float64)))])
    is_mask = is_standard(node, *_MASKING) and (beyond < 0).all()
    is_mask = is_mask or (is_standard(node, "Mul") and (beyond < _MASK_FACTOR).all())
    if not (is_mask or is_standard(node, *_BOUNDING)):
        return f"holds {extreme:.6g}, beyond {highest:.6g}, the largest {name}"
    saturated = np.clip(cast.astype(np.float32), lowest, highest).astype(dtype.numpy())
    kept = np.where(lost, saturated, cast)
    return (
        kept,
        f"{extreme:.6g} becomes {lowest if extreme < 0 else highest:.6g}, the {'lowest' if extreme < 0 else 'largest'} {name}",
    )
