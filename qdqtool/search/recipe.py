"""Recipes: a mix of precisions as a file that a person can read and `quantize --recipe` replays to the same bytes.

format = "qdqtool.recipe"
version = 1
preset = "xint8"

[options]            # what else was said, by the names of the command's options
target = "generic_int8"

[nodes]              # exact names of nodes of the prepared model
float = ["/head/concat"]

[bound]              # what the search had to reach, and what it reached
[hashes]             # of the model, and of the ranges it was calibrated to"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from typing import Any

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.toml_table import TomlTable
from qdq_passes.errors import ModelError, UsageError
from qdq_passes.numerics.documents import toml_of, typed
from qdq_passes.select.globs import literal

from qdqtool.io.files.atomic import write_whole
from qdqtool.io.files.read import read_text
from qdqtool.io.files.toml_write import toml_text
from qdqtool.options import options_of
from qdqtool.quantization.options import PlanOptions
from qdqtool.search.variants import OF_NODES

FORMAT, VERSION = "qdqtool.recipe", 1

#: What an option of `quantize` may be, in a recipe.
OptionValue = str | bool | int | float | tuple[str, ...] | Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What makes a quantization again.

    Args:
        preset: name or file of the preset.
        options: what else is said to `quantize`, by the names of its options; what has its default is not here.
        nodes: precision → exact names of the nodes that have it.
        metric: what judged.
        bound: what the figure had to reach.
        figure: what it reached; None where nothing differs from the float model.
        cost: in the unit of `qdqtool.search.precision_cost`.
        share_8_bit: share of the multiply-accumulates in 8 bit or less, 0 to 1.
        crossings: tensors held in 8 bit and in something wider.
        model_sha256: fingerprint of the float model, see `qdqtool.calibrate.fingerprint`.
        ranges_sha256: of the ranges of the result.
        preset_sha256: of what the preset says.
    """

    preset: str
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    metric: str = "sqnr"
    bound: float = 0.0
    figure: float | None = None
    cost: float = 0.0
    share_8_bit: float = 1.0
    crossings: int = 0
    model_sha256: str = ""
    ranges_sha256: str = ""
    preset_sha256: str = ""

    @property
    def selectors(self) -> dict[str, tuple[str, ...]]:
        """Precision → selectors that match these nodes alone."""
        return {precision: tuple(map(literal, names)) for precision, names in self.nodes.items()}

    def options_beside(self, said: Mapping[str, object], defaults: Mapping[str, object]) -> dict[str, Any]:
        """What the recipe says, as options of `quantize`.

        Args:
            said: the options that are given beside it.
            defaults: of all options that there are.

        Raises:
            UsageError: something is said that contradicts the recipe.
        """
        own: dict[str, Any] = {"preset": self.preset, **self.options}
        for precision, texts in self.selectors.items():
            own[precision] = (*own.get(precision, ()), *texts)
        unknown = sorted(set(self.options) - set(replayed_kinds()))
        if own.get("annotate") and not said.get("annotate"):
            functions = ", ".join(own["annotate"])
            hint = "where they are yours, say --annotate as well"
            raise UsageError(f"the recipe wants to call functions ({functions})", hint=hint)
        if unknown:
            raise UsageError(f"the recipe has the option {unknown[0]!r}, which there is not", hint="update qdqtool")
        for name, value in said.items():
            value = os.fspath(value) if isinstance(value, os.PathLike) else value
            told, default = getattr(value, "name", value) if name == "preset" else value, defaults[name]
            if not _same(value, default) and not _same(told, own.get(name, default)):
                option = spelled(name)
                raise UsageError(
                    f"{option} contradicts the recipe, which {_words(own.get(name))}",
                    hint=f"leave {option} out, or search again with it",
                )
        return own

    def to_toml(self) -> str:
        """The text of the file; the same recipe gives the same text."""
        reached: dict[str, Any] = {"metric": self.metric, "bound": self.bound}
        if self.figure is not None:
            reached["figure"] = self.figure
        return toml_text(
            {
                "format": FORMAT,
                "version": VERSION,
                "preset": self.preset,
                "options": dict(sorted(self.options.items())),
                "nodes": {p: list(self.nodes[p]) for p in OF_NODES if self.nodes.get(p)},
                "bound": {
                    **reached,
                    "cost": self.cost,
                    "share_8_bit": round(self.share_8_bit, 6),
                    "boundary_crossings": self.crossings,
                },
                "hashes": {
                    "model_sha256": self.model_sha256,
                    "ranges_sha256": self.ranges_sha256,
                    "preset_sha256": self.preset_sha256,
                },
            }
        )

    def write(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the file, whole or not at all.

        Raises:
            UsageError: it exists and ``overwrite`` is off.
        """
        write_whole(path, self.to_toml().encode(), overwrite=overwrite)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Recipe:
        """Read a recipe.

        Raises:
            ModelError: missing, no recipe, a newer version, or a key that is not known.
        """
        where = os.fspath(path)
        try:
            data = toml_of(read_text(path))
        except ValueError as error:
            raise ModelError(f"is not TOML ({error})", where=where) from error
        if data.get("format") != FORMAT:
            raise ModelError("is no recipe", where=where, hint="`qdqtool mixed-precision --recipe FILE` writes one")
        version = data.get("version")
        if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= VERSION:
            raise ModelError(f"has version {version!r}, known is {VERSION}", where=where, hint="update qdqtool")
        keys = ("format", "version", "preset", "options", "nodes", "bound", "hashes")
        root = TomlTable.of(data, where=where, keys=keys)
        bound = root.table("bound", "metric", "bound", "figure", "cost", "share_8_bit", "boundary_crossings").data
        hashes = root.table("hashes", "model_sha256", "ranges_sha256", "preset_sha256").data
        nodes = root.table("nodes", *OF_NODES)
        options = root.data.get("options", {})
        if not isinstance(options, dict):
            raise ModelError("'options' is no table", where=where)
        try:
            return cls(
                preset=root.text("preset"),
                options={name: _option(name, value) for name, value in options.items()},
                nodes={precision: nodes.texts(precision) for precision in OF_NODES if precision in nodes.data},
                metric=str(bound.get("metric", "sqnr")),
                bound=float(bound.get("bound", 0.0)),  # type: ignore[arg-type]
                figure=None if "figure" not in bound else float(bound["figure"]),  # type: ignore[arg-type]
                cost=float(bound.get("cost", 0.0)),  # type: ignore[arg-type]
                share_8_bit=float(bound.get("share_8_bit", 1.0)),  # type: ignore[arg-type]
                crossings=int(bound.get("boundary_crossings", 0)),  # type: ignore[call-overload]
                **{name: str(value) for name, value in hashes.items()},
            )
        except (TypeError, ValueError) as error:
            raise ModelError(f"holds something of another kind ({error})", where=where) from error


def option_value(name: str, value: Any) -> OptionValue:
    """An argument of `quantize` as a recipe writes it.

    Raises:
        UsageError: it is a function, which a file cannot hold.
    """
    items = list(value) if isinstance(value, list | tuple) else [value]
    if any(callable(item) for item in items):
        raise UsageError("a recipe cannot hold a function", where=name, hint="give it as module:function")
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    return tuple(value) if isinstance(value, list | tuple) else value


def spelled(name: str) -> str:
    """The option ``name`` of `quantize` as the command line has it."""
    flags = {each.name: each.spelled for each in options_of(PlanOptions)}
    return flags.get(name, f"--{name.replace('_', '-')}")


def replayed_kinds() -> dict[str, tuple[Any, ...]]:
    """Of each option that a recipe may hold the types that it may have: no recipe says what is read, written or replaced."""
    found = {each.name: each.types for each in options_of(PlanOptions)}
    texts = {each.name: (tuple[str, ...],) for each in options_of(PlanOptions) if each.is_many and each.types == (str,)}
    return {**found, **texts, "target": (str,), "samples": (int,), "seed": (int,), "hold_out": (int,)}


def _option(name: str, value: object) -> OptionValue:
    for kind in replayed_kinds().get(name, (object,)):
        with suppress(ValueError):
            return typed(kind, value)  # type: ignore[no-any-return]
    raise ValueError(f"options.{name} cannot be {value!r}")


def _same(a: Any, b: Any) -> bool:
    """Whether two option values say the same: a list and a tuple do, and so do None and nothing in a list or mapping."""
    a, b = (None if isinstance(v, list | tuple | Mapping) and not v else v for v in (a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_plain(a[key]) == _plain(b[key]) for key in a)
    return (list(a) if isinstance(a, list | tuple) else a) == (list(b) if isinstance(b, list | tuple) else b)


def _plain(value: Any) -> Any:
    """A text as the number or truth that it says, as it stands on a command line."""
    if not isinstance(value, str):
        return value
    try:
        return {"true": True, "false": False}[value.lower()] if value.lower() in ("true", "false") else float(value)
    except ValueError:
        return value


def _words(value: Any) -> str:
    listed = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return "says nothing of it" if value is None else f"says {listed}"
