"""Naming profiles: how inputs and outputs of the graphs are called, and what else a client of that name wants in the folder.

A profile is a TOML file in `qdqtool/llm/namings`, or one of the user's."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.registry import PASSES
from qdq_passes.core.toml_table import TomlTable
from qdq_passes.decoder.look.cache_tensors import CacheWidths
from qdq_passes.errors import UsageError
from qdq_passes.graph.sizes import static_sizes
from qdq_passes.pipeline.pipeline import Pipeline, parse_pipeline

from qdqtool.io.files.artifacts import canonical_json
from qdqtool.io.files.atomic import write_hashed
from qdqtool.io.files.folders import path_inside
from qdqtool.llm.folder.decoder_config import DecoderConfig
from qdqtool.llm.folder.manifest import Manifest
from qdqtool.llm.plan import NAMINGS
from qdqtool.llm.plan.genai import genai_config, refuse_for_genai
from qdqtool.llm.plan.specializations import Specialization, cloud_ai_form, flat_form
from qdqtool.llm.plan.splitting import SplitPlan, StaticGraph

_ROLES = ("ids", "positions", "logits", "past", "present")


@dataclass(frozen=True, kw_only=True)
class Naming:
    """A naming profile.

    Args:
        name: of the profile.
        description: what it is for.
        layouts: layouts of the cache that it takes; all where empty.
        mask: ``input`` or ``graph`` where it prescribes that.
        logits: ``last`` or ``all`` where it prescribes that.
        decompose: fused attention, norms and rotary embeddings become standard operators.
        tabulate_angles: cosines and sines of positions come from a table.
        passes: pipeline that runs on each static graph before the names are given.
        names: role → name, or pattern with ``{layer}`` and ``{part}``.
        files: what is written beside the graphs.
        cache: widths that its device wants of the cache.
    """

    name: str
    description: str
    layouts: tuple[str, ...] = ()
    mask: str = ""
    logits: str = ""
    decompose: bool = False
    tabulate_angles: bool = False
    passes: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    cache: CacheWidths = CacheWidths()

    def applied(self, plan: SplitPlan) -> SplitPlan:
        """``plan`` as this profile wants it.

        Raises:
            UsageError: the plan has a layout that it does not take.
        """
        if self.layouts and plan.layout not in self.layouts:
            raise UsageError(
                f"naming {self.name} takes the layout {' or '.join(self.layouts)}, not {plan.layout}",
                hint=f"pass --layout {self.layouts[0]}",
            )
        texts = [self.passes] if self.passes else []
        if self.names:
            texts.append(str(Pipeline((PASSES.load("rename-decoder")(**self.names),))))
        changes: dict[str, Any] = {"finish": ",".join(texts)}
        if self.mask:
            changes["mask"] = self.mask
        if self.logits:
            changes["all_logits"] = self.logits == "all"
        if self.decompose:
            changes["decompose"] = True
        if self.tabulate_angles:
            changes["tabulate_angles"] = True
        return dataclasses.replace(plan, **changes)

    def explain(self) -> list[tuple[str, str]]:
        """What it prescribes, as (key, value) in words."""
        rows = [
            ("layout", " or ".join(self.layouts)), ("mask", self.mask), ("logits", self.logits),
            ("decompose", "yes" if self.decompose else ""),
            ("tabulate_angles", "yes" if self.tabulate_angles else ""), ("passes", self.passes),
            *self.names.items(), ("files", ", ".join(self.files)),
        ]  # fmt: skip
        return [(key, value) for key, value in rows if value]

    def refuse(self, shapes: Sequence[Specialization], *, in_parts: bool) -> None:
        """Refuse what its client has no place for, before anything is made.

        Args:
            shapes: the graphs that are wanted.
            in_parts: they are to be cut.

        Raises:
            UsageError: the graphs are not of the kind that its client takes.
        """
        for name in self.files:
            if name in _REFUSALS:
                _REFUSALS[name](shapes, in_parts)

    def warnings(self, graphs: Sequence[StaticGraph]) -> list[str]:
        """What its device will not like about the caches of ``graphs``, in words; each once, with the first such tensor."""
        found: dict[str, str] = {}
        for graph in graphs:
            values = {value.name: value for value in graph.model.graph.inputs}
            for tensor in graph.decoder.cache:
                value = values[tensor.past]
                sizes, dtype = static_sizes(value), value.dtype
                for text in self.cache.complaints(sizes or [1], dtype.bitwidth // 8 if dtype is not None else 4):
                    found.setdefault(text, f"{graph.specialization.name}: {tensor.past}: {text}")
        return list(found.values())

    def write(
        self, folder: str, manifest: Manifest, graphs: tuple[StaticGraph, ...], beside: DecoderConfig
    ) -> dict[str, str]:
        """Write what this profile has beside the graphs; name of each file → its SHA-256."""
        digests: dict[str, str] = {}
        for name in self.files:
            text = canonical_json(_WRITERS[name](manifest, graphs, beside), indent=1) + "\n"
            digests[name] = write_hashed(path_inside(folder, name, where=folder), text.encode())
        return digests


def _shapes(manifest: Manifest) -> list[Specialization]:
    return [Specialization.of(m.batch_size, m.seq_len, m.ctx_len) for m in manifest.models]


#: File → what stands in it.
_WRITERS: dict[str, Callable[[Manifest, tuple[StaticGraph, ...], DecoderConfig], Any]] = {
    "genai_config.json": genai_config,
    "cloud_ai/specializations.json": lambda manifest, _graphs, _beside: cloud_ai_form(_shapes(manifest)),
    "cloud_ai/specializations_flat.json": lambda manifest, _graphs, _beside: flat_form(_shapes(manifest)),
}

#: File → what refuses shapes that it has no place for.
_REFUSALS: dict[str, Callable[[Sequence[Specialization], bool], None]] = {"genai_config.json": refuse_for_genai}


def load_naming(name_or_path: str | os.PathLike[str]) -> Naming:
    """The profile of that name or, when it ends in ``.toml``, in that file.

    Raises:
        UsageError: there is no such name or file.
        ModelError: the file is broken; the message names file and key.
    """
    file = NAMINGS.read(name_or_path)
    root = file.root(
        "description", "layout", "mask", "logits", "passes", "files", "names", "decompose", "tabulate_angles", "cache"
    )
    names = root.table("names", *_ROLES)
    passes = root.long_text("passes")
    if passes:
        parse_pipeline(passes)
    return Naming(
        name=file.name,
        description=root.text("description"),
        layouts=root.choices("layout", ("in-place", "slide")),
        mask=root.choice("mask", ("input", "graph")) if "mask" in root.data else "",
        logits=root.choice("logits", ("last", "all")) if "logits" in root.data else "",
        decompose=root.flag("decompose"),
        tabulate_angles=root.flag("tabulate_angles"),
        passes=passes,
        names={role: names.text(role) for role in _ROLES if role in names.data},
        files=root.choices("files", tuple(_WRITERS)),
        cache=_widths(root),
    )


def _widths(root: TomlTable) -> CacheWidths:
    """The table ``[cache]``."""
    table = root.table("cache", "last_axis_bytes", "powers_of_two", "itemsize")
    return CacheWidths(
        last_axis_bytes=table.number("last_axis_bytes"),
        powers_of_two=table.flag("powers_of_two"),
        itemsize=table.number("itemsize"),
    )
