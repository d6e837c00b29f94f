"""What quantizing for a target does: the preset where none is said, passes that it leaves out, and passes that it adds."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Literal

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.registry import PASSES
from qdq_passes.core.toml_registry import SUFFIX, TomlFile
from qdq_passes.core.toml_table import TomlTable
from qdq_passes.errors import UsageError
from qdq_passes.pipeline.pipeline import Pipeline, parse_pipeline

from qdqtool.presets import PRESETS
from qdqtool.targets.toml_values import operators_of

#: Where a symbolic batch is bound.
Binds = Literal["never", "where-needed", "always"]


@dataclass(frozen=True, kw_only=True)
class Legalization:
    """What `quantize --target` takes where no preset is said, and what it changes of the pipeline of any.

    Args:
        preset: name or path of the preset that suits the target best; empty where its file names none.
        without: names of passes that are left out.
        before: passes on the float model, behind those of the preset.
        after: passes on the pairs, behind those of the preset.
        sharing: operator types whose output has the encoding of their input; as the preset says where empty.
        isolates: whether operators that it lacks are left float with what ties them to integers, as one would cost its region.
        binds: whether a symbolic batch is made 1: nowhere, where shapes hang on it, or wherever there is one.
    """

    preset: str = ""
    without: tuple[str, ...] = ()
    before: Pipeline = field(default_factory=Pipeline)
    after: Pipeline = field(default_factory=Pipeline)
    sharing: tuple[str, ...] = ()
    isolates: bool = False
    binds: Binds = "never"


def legalization_of(root: TomlTable, file: TomlFile, base: Legalization) -> Legalization:
    """The table ``quantize``; its keys replace single keys of the target that is extended.

    Raises:
        ModelError: a preset or a pass that there is not, or a pipeline that cannot be read.
    """
    table = root.table("quantize", "preset", "without", "before", "after", "sharing")
    given = table.data
    return Legalization(
        preset=_preset(table, file) if "preset" in given else base.preset,
        without=table.choices("without", tuple(PASSES.names())) if "without" in given else base.without,
        before=_pipeline(table, "before") if "before" in given else base.before,
        after=_pipeline(table, "after") if "after" in given else base.after,
        sharing=operators_of(table, "sharing", required=False) if "sharing" in given else base.sharing,
    )


def _preset(table: TomlTable, file: TomlFile) -> str:
    """The preset that ``table`` names: by name, or a path from the folder of ``file``."""
    name = table.text("preset")
    wanted = str(Path(file.origin).parent / name) if name.endswith(SUFFIX) else name
    try:
        PRESETS.read(wanted)
    except UsageError as error:
        raise table.error(f"'preset': {error.message}", hint=error.hint) from error
    return wanted


def _pipeline(table: TomlTable, key: str) -> Pipeline:
    try:
        return parse_pipeline(table.text(key))
    except UsageError as error:
        raise table.error(f"{key!r} is no pipeline: {error.message}", hint=error.hint) from error
