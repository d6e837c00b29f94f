"""Encodings for tensors that a file leaves out: from neighbours, or from data by the rule that the file follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from qdq_passes.encode.look.demands import Role, sharing_outputs
from qdq_passes.graph.uses import constant_array
from qdq_passes.numerics.encoding import Encoding, encoding_of_range, encoding_of_weight

from qdqtool.calibrate.observer import Range
from qdqtool.encodings.biases import smallest_scale
from qdqtool.encodings.coverage import Missing
from qdqtool.encodings.scale_axes import implied_axes

#: Operators whose output holds every element of the input, so that the input may take the output's encoding as well.
KEEPS_ALL = frozenset(
    {
        "DepthToSpace",
        "Expand",
        "Flatten",
        "Identity",
        "Reshape",
        "SpaceToDepth",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    }
)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How a file encodes tensors of one role.

    Args:
        dtype: storage type of most.
        symmetric: all zero points stand in the middle.
        power_of_two: all scales are powers of two.
        per_axis: most have a scale per channel.
        reduced: one bit less is used.
    """

    dtype: ir.DataType
    symmetric: bool
    power_of_two: bool = False
    per_axis: bool = False
    reduced: bool = False


def rules_of(encodings: Mapping[ir.Value, Encoding], roles: Mapping[ir.Value, Role]) -> dict[Role, Rule]:
    """The rule per role, for roles that ``encodings`` have."""
    by_role: dict[Role, list[Encoding]] = {}
    for value, encoding in encodings.items():
        if value in roles:
            by_role.setdefault(roles[value], []).append(encoding)
    return {role: _rule_of(found) for role, found in by_role.items()}


def _rule_of(found: list[Encoding]) -> Rule:
    dtype = Counter(e.dtype for e in found).most_common(1)[0][0]
    of_type = [e for e in found if e.dtype == dtype]
    middle = {ir.DataType.UINT8: 128, ir.DataType.UINT16: 2**15, ir.DataType.UINT4: 8}.get(dtype, 0)
    symmetric = all(z == middle for e in of_type for z in e.zero_point)
    return Rule(
        dtype=dtype,
        symmetric=symmetric,
        power_of_two=symmetric and all(e.position is not None for e in of_type),
        per_axis=2 * sum(e.axis is not None for e in of_type) > len(of_type),
    )


def propagate(
    model: ir.Model, encodings: Mapping[ir.Value, Encoding], missing: Iterable[Missing]
) -> dict[ir.Value, tuple[Encoding, ir.Value]]:
    """Encodings that tensors get through data movement, with the neighbour each comes from.

    An output takes its input's. An input takes its outputs' where all of its elements arrive there and they agree. Only
    encodings per tensor move.
    """
    wanted = {one.value for one in missing if one.role == "activation" and not one.fused}
    known, found = dict(encodings), dict[ir.Value, tuple[Encoding, ir.Value]]()
    edges, results = sharing_outputs(model), dict[ir.Value, list[ir.Value]]()
    for output, source in edges.items():
        results.setdefault(source, []).append(output)

    def take(value: ir.Value, near: ir.Value) -> bool:
        given = known.get(near)
        if value not in wanted or value in known or given is None or given.axis is not None:
            return False
        known[value], found[value] = given, (given, near)
        return True

    grows = True
    while grows:
        grows = any([take(output, source) for output, source in edges.items()])  # noqa: C419  (all of them)
        for source, outputs in results.items():
            keepers = [
                v for v in outputs if (maker := v.producer()) is not None and maker.op_type in KEEPS_ALL and v in known
            ]
            if keepers and len({known[v] for v in keepers}) == 1:
                grows |= take(source, keepers[0])
    return found


def not_shared(model: ir.Model, values: Iterable[ir.Value], known: Iterable[ir.Value]) -> list[ir.Value]:
    """Those of ``values`` that will not get the encoding of the tensor they are moved from."""
    wanted, edges = list(dict.fromkeys(values)), sharing_outputs(model)
    there = {*wanted, *known}
    return [value for value in wanted if edges.get(value) not in there]


def from_range(found: Range, rule: Rule, value: ir.Value) -> Encoding:
    """The encoding of an activation whose values lie in ``found``."""
    return encoding_of_range(
        found.low, found.high, dtype=rule.dtype, symmetric=rule.symmetric, power_of_two=rule.power_of_two,
        smallest=smallest_scale(value), reduced=rule.reduced,
    )  # fmt: skip


def from_data(value: ir.Value, rule: Rule, axis: int | None = None) -> Encoding | None:
    """The encoding of a constant by its data; None when it is empty or not finite.

    Args:
        value: the constant.
        rule: how; per channel where it says so and ``axis``, or what the readers imply, tells the channels.
        axis: axis of the channels.
    """
    array = constant_array(value)
    if array is None or not array.size or not np.isfinite(array.astype(np.float32)).all():
        return None
    axes = implied_axes(value)
    if axis is None and rule.per_axis and axes is not None:
        axis = axes[0]
    return encoding_of_weight(
        array, axis, dtype=rule.dtype, symmetric=rule.symmetric, power_of_two=rule.power_of_two,
        smallest=smallest_scale(value), reduced=rule.reduced,
    )  # fmt: skip
