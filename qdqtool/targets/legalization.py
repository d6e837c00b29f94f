"""What quantizing for a target does besides a preset: passes that it leaves out, and passes that it adds."""

from __future__ import annotations

from dataclasses import dataclass, field

from qdq_passes.core.registry import PASSES
from qdq_passes.core.toml_table import TomlTable
from qdq_passes.errors import UsageError
from qdq_passes.pipeline.pipeline import Pipeline, parse_pipeline

from qdqtool.targets.toml_values import operators_of


@dataclass(frozen=True, kw_only=True)
class Legalization:
    """What `quantize --target` changes of the pipeline of any preset.

    Args:
        without: names of passes that are left out.
        before: passes on the float model, behind those of the preset.
        after: passes on the pairs, behind those of the preset.
        sharing: operator types whose output has the encoding of their input; as the preset says where empty.
        isolates: whether operators that it lacks are left float with what ties them to integers, as one would cost its region.
    """

    without: tuple[str, ...] = ()
    before: Pipeline = field(default_factory=Pipeline)
    after: Pipeline = field(default_factory=Pipeline)
    sharing: tuple[str, ...] = ()
    isolates: bool = False


def legalization_of(root: TomlTable, base: Legalization) -> Legalization:
    """The table ``quantize``; it replaces that of the target that is extended.

    Raises:
        ModelError: a pass that there is not, or a pipeline that cannot be read.
    """
    if "quantize" not in root.data:
        return base
    table = root.table("quantize", "without", "before", "after", "sharing")
    return Legalization(
        without=table.choices("without", tuple(PASSES.names())),
        before=_pipeline(table, "before"),
        after=_pipeline(table, "after"),
        sharing=operators_of(table, "sharing", required=False),
    )


def _pipeline(table: TomlTable, key: str) -> Pipeline:
    if key not in table.data:
        return Pipeline()
    try:
        return parse_pipeline(table.text(key))
    except UsageError as error:
        raise table.error(f"{key!r} is no pipeline: {error.message}", hint=error.hint) from error
