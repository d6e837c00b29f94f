"""What the two-section files of the AIMET line share: which section a tensor belongs to, and the summary of settings."""

from __future__ import annotations

from collections import Counter

from qdq_passes.graph.uses import is_constant
from qdq_passes.numerics.encoding import Encoding, integer_format, is_integer_type

from qdqtool.encodings.entries import Encodings, Entry, Json, Lpbq, Role, Unplaced
from qdqtool.encodings.scale_axes import Values


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
