"""Preset files: TOML → `Preset`, with a line that names file, table and key for whatever is wrong."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping

from qdq_passes.core.base import Named, Pass
from qdq_passes.core.toml_registry import TomlFile
from qdq_passes.core.toml_table import Scalar, TomlTable
from qdq_passes.encode.annotate_encodings import AnnotateEncodings
from qdq_passes.encode.edit.encoding_policy import check_min_scale
from qdq_passes.encode.edit.weight_policy import parse_weight_types
from qdq_passes.errors import UnsupportedError, UsageError
from qdq_passes.graph.operators.channels import parse_per_axis
from qdq_passes.pipeline.text import make_pass, parse_passes
from qdq_passes.qdq.insert_qdq import InsertQdq
from qdq_passes.select.selectors import Selector

from qdqtool.presets import PRESETS
from qdqtool.presets.extending import EXTENDS, extended
from qdqtool.presets.precision import KINDS, precision_of
from qdqtool.presets.preset import Preset
from qdqtool.presets.recovery import KEYS as RECOVERY
from qdqtool.presets.recovery import recovery_of

#: Options of annotate-encodings and of insert-qdq that a preset may set.
POLICY = (
    "activations", "weights", "bias", "bias_overflow", "scales", "rounding", "constants", "symmetric",
    "asymmetric_outputs", "weights_symmetric", "per_axis", "block_size", "weight_types", "reduce_range", "min_range", "min_scale",
    "widening", "sharing", "share_constants", "followers", "hard_sigmoid", "batch_norm_parameters",
    "outputs_stay_float", "constant_b_only", "follow_input",
)  # fmt: skip
INSERT = ("weights", "narrow", "dedicated", "domain")
#: Those of them that are lists of texts.
LISTS = ("asymmetric_outputs", "per_axis", "weight_types", "sharing", "followers", "outputs_stay_float")

#: What ``activations`` says where they stay float: nothing is calibrated then.
FLOAT_ACTIVATIONS = "none"
#: Pieces of the pipeline: before calibration, on the ranges, on the pairs.
PIPELINE = ("before", "ranged", "after")

_METHOD = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def load_preset(name_or_path: str | os.PathLike[str]) -> Preset:
    """The preset of that name or, when it ends in ``.toml``, in that file.

    Raises:
        UsageError: there is no such name or file.
        ModelError: the file is broken; the message names file, table and key.
    """
    return _preset(extended(PRESETS, PRESETS.read(name_or_path), check=_preset))


def _preset(file: TomlFile) -> Preset:
    tables = (
        "calibration",
        "pipeline",
        "encodings",
        "insert",
        "selection",
        "refuses",
        "precision",
        "switches",
        "recovery",
    )
    root = file.root("description", EXTENDS, *tables)
    calibration = root.table("calibration", "method", "options")
    pipeline, encodings = root.table("pipeline", *PIPELINE), root.table("encodings", *POLICY)
    given = root.data.get("switches", {})
    switches = root.table("switches", *(given if isinstance(given, dict) else ()))
    return Preset(
        name=file.name,
        description=root.text("description"),
        method=_method(calibration),
        method_options=_method_options(calibration),
        before=_passes(pipeline, "before"),
        ranged=_passes(pipeline, "ranged"),
        constants_by_method="constants" not in encodings.data,
        annotate=_annotate(encodings, root.table("selection", "ops", "exclude")),
        insert=_insert(root.table("insert", *INSERT)),
        after=_passes(pipeline, "after"),
        no_per_axis=_line(root.table("refuses", "per_axis"), "per_axis"),
        recovery=recovery_of(root.table("recovery", *RECOVERY)),
        precision=precision_of(root.table("precision", "convert", *KINDS), switches),
        sha256=file.sha256,
    )


def _line(table: TomlTable, key: str) -> str:
    return table.text(key) if key in table.data else ""


def _method(table: TomlTable) -> str:
    method = table.text("method")
    if not _METHOD.fullmatch(method):
        raise table.error(f"'method' cannot be {method!r}", hint="see `qdqtool list methods`")
    return method


def _method_options(calibration: TomlTable) -> dict[str, dict[str, Scalar]]:
    """Options per method: ``[calibration.options.pow2-minmse]``."""
    given = calibration.data.get("options", {})
    options = calibration.table("options", *(given if isinstance(given, dict) else ()))
    found: dict[str, dict[str, Scalar]] = {}
    for method, keys in options.data.items():
        found[method] = options.table(method, *(keys if isinstance(keys, dict) else ())).scalars()
    return found


def _passes(table: TomlTable, key: str) -> tuple[Pass, ...]:
    text = table.long_text(key)
    try:
        return tuple(parse_passes(text)) if text.strip() else ()
    except (UsageError, UnsupportedError) as error:
        raise table.error(f"{key!r}: {error.message}", hint=error.hint) from error


def _annotate(policy: TomlTable, selection: TomlTable) -> AnnotateEncodings:
    lists = {key: policy.texts(key) for key in LISTS if key in policy.data}
    rest = TomlTable({k: v for k, v in policy.data.items() if k not in LISTS}, policy.where, policy.keys)
    ranges = {} if policy.data.get("activations") == FLOAT_ACTIVATIONS else {"encodings": Named("ranges")}
    annotate = _make(policy, "annotate-encodings", {**ranges, **rest.scalars(), **lists})
    assert isinstance(annotate, AnnotateEncodings)
    if annotate.scales == "pow2" and not (annotate.symmetric and not annotate.asymmetric_outputs):
        raise policy.error("power-of-two scales are symmetric", hint='write scales = "any" or symmetric = true')
    if annotate.scales == "pow2" and not annotate.weights_symmetric:
        raise policy.error("power-of-two scales are symmetric", hint='write scales = "any" or weights_symmetric = true')
    for key, parse in (("per_axis", parse_per_axis), ("weight_types", parse_weight_types)):
        try:
            parse(getattr(annotate, key))
        except UsageError as error:
            raise policy.error(f"{key!r}: {error.message}", hint=error.hint) from error
    try:
        check_min_scale(annotate.min_scale, power_of_two=annotate.scales == "pow2")
    except UsageError as error:
        raise policy.error(f"'min_scale': {error.message}", hint=error.hint) from error
    try:
        exclude = Selector.of(*selection.texts("exclude"))
    except (UsageError, UnsupportedError) as error:
        raise selection.error(f"'exclude': {error.message}", hint=error.hint) from error
    return dataclasses.replace(
        annotate,
        ops=selection.texts("ops") or annotate.ops,
        exclude=annotate.exclude if exclude.is_all else exclude,
    )


def _insert(table: TomlTable) -> InsertQdq:
    insert = _make(table, "insert-qdq", table.scalars())
    assert isinstance(insert, InsertQdq)
    return insert


def _make(table: TomlTable, name: str, options: Mapping[str, object]) -> Pass:
    """The pass with ``options``; what it refuses is an error about ``table``."""
    try:
        return make_pass(name, dict(options))
    except UsageError as error:
        raise table.error(error.message, hint=error.hint) from error
