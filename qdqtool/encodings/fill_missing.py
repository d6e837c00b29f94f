"""Fill in encodings that a file leaves out: from neighbours, from data by the rule that the file follows, or by calibration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import numpy as np
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.encode.look.demands import Role, sharing_outputs
from qdq_passes.errors import UsageError
from qdq_passes.graph.uses import constant_array, is_constant
from qdq_passes.numerics.encoding import Encoding, encoding_of_range, encoding_of_weight

from qdqtool.calibrate.observer import Range
from qdqtool.encodings.biases import biases_of, product_encodings, smallest_scale
from qdqtool.encodings.entries import Entry, Wish
from qdqtool.encodings.formats.ort_overrides import BIASES
from qdqtool.encodings.formats.ort_overrides import NAME as ORT
from qdqtool.encodings.import_plan import ImportPlan, Missing
from qdqtool.encodings.tensors import implied_axes

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
MissingMode = Literal["error", "propagate", "float", "calibrate"]
BiasMode = Literal["auto", "file", "int32"]
#: Ranges of tensors of the float model, by name.
Calibrate = Callable[[list[str]], Mapping[str, Range]]
#: Tensors named in one message.
SHOWN = 8


def fill_missing(job: ImportPlan, missing: MissingMode, bias: BiasMode, calibrate: Calibrate | None) -> None:
    """Give encodings to values that the file leaves out, as far as ``missing`` and ``bias`` say.

    Raises:
        UsageError: ``missing="error"`` and there are some; calibration without data.
    """
    if missing in ("propagate", "calibrate"):
        _propagate(job)
    if missing == "calibrate":
        _calibrate(job, calibrate)
    for value, wish in job.wishes.items():
        if value not in job.chosen:
            _from_wish(job, value, wish)
    if bias == "int32" or (bias == "auto" and job.file.format == ORT):
        _derive_biases(job, everything=bias == "int32")
    if missing == "error":
        _refuse(job)


def _propagate(job: ImportPlan) -> None:
    for value, (encoding, near) in propagate(job.model, job.chosen, job.missing()).items():
        job.fill(value, encoding, f"its neighbour {near.name}")


def _calibrate(job: ImportPlan, calibrate: Calibrate | None) -> None:
    rules = rules_of(job.chosen, {one.value: one.role for one in job.demanded})
    wanted = [one for one in job.missing() if not one.fused and one.role in rules]
    activations = not_shared(job.model, [one.value for one in wanted if one.role == "activation"], job.chosen)
    if activations and calibrate is None:
        raise UsageError("--missing calibrate without data", hint="give --data")
    ranges = calibrate([value.name or "" for value in activations]) if activations and calibrate is not None else {}
    for value in activations:
        found = ranges.get(value.name or "")
        if found is not None:
            job.fill(value, from_range(found, rules["activation"], value), "calibration")
    _propagate(job)
    for one in wanted:
        if one.value not in job.chosen and one.role != "activation":
            _from_rule(job, one, rules[one.role])


def _from_rule(job: ImportPlan, one: Missing, rule: Rule) -> None:
    """A weight or bias by its data, or an int32 bias by the scales of its layer."""
    if rule.dtype != ir.DataType.INT32:
        encoding = from_data(one.value, rule)
        if encoding is not None:
            job.fill(one.value, encoding, "its data")
        return
    made = product_encodings([one.value], job.chosen)[one.value]
    if isinstance(made, Encoding):
        job.fill(one.value, made, "the scales of input and weight")
    else:
        job.notes.append(f"{one.value.name} stays float: {made}")


def _from_wish(job: ImportPlan, value: ir.Value, wish: Wish) -> None:
    """A constant whose type alone the file gives: its data tell the rest."""
    encoding = None
    if is_constant(value):
        dtype = wish.dtype or ir.DataType.INT8
        rule = Rule(dtype=dtype, symmetric=wish.symmetric is not False, reduced=bool(wish.reduce_range))
        encoding = from_data(value, rule, wish.axis)
    if encoding is not None:
        job.fill(value, encoding, "its data, as the file asks")
    elif all(one.value is not value for one in job.missing()):
        job.declined.append((value.name or "", "the file asks for an encoding and gives none; calibrate it"))


def _derive_biases(job: ImportPlan, *, everything: bool) -> None:
    """int32 biases that the file leaves to its reader: all of them, or those that our own export left out."""
    hinted = job.file.hints.get(BIASES) if job.use_hints else None
    listed = hinted if isinstance(hinted, Mapping) and not everything else None
    old = {new: name for name, new in job.alignment.renamed.items()}
    names = {value: old.get(value.name or "", value.name or "") for value in biases_of(job.model)}
    biases = [
        value
        for value, name in names.items()
        if value not in job.chosen and value not in job.floats and (listed is None or name in listed)
    ]
    for value, made in product_encodings(biases, job.chosen).items():
        if not isinstance(made, Encoding):
            job.notes.append(f"{value.name} stays float: {made}")
            continue
        job.fill(value, made, "the scales of input and weight")
        data = listed.get(names[value]) if listed is not None else None
        if data:
            job.hints[value] = job.hint(value, Entry(name=names[value], holds=made), data)


def _refuse(job: ImportPlan) -> None:
    """Biases count only where the file lists biases: older formats leave them to their readers."""
    has_biases = any(one.role == "bias" and one.value in job.chosen for one in job.demanded)
    counted = [one for one in job.missing() if not one.fused and (one.role != "bias" or has_biases)]
    if not counted:
        return
    names = [one.value.name or "" for one in counted]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    raise UsageError(
        f"{len(names)} tensor{'s have' if len(names) > 1 else ' has'} no encoding: {', '.join(names[:SHOWN])}{more}",
        hint="--missing float leaves them float, propagate and calibrate find one",
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
