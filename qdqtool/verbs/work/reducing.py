"""`debug reduce`: what failing means, what values the parts are fed with, and the search, whose best is kept at any moment."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import QdqError, UsageError
from qdq_passes.graph.uses import constant_array, main_nodes, values_read
from qdq_passes.numerics.arrays import Array
from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool.io.feeds.array_store import write_npz
from qdqtool.io.feeds.feeds import open_feeds
from qdqtool.io.feeds.spec import input_specs
from qdqtool.io.files.progress import StageProgress, Warned, pass_on
from qdqtool.io.models.save import save
from qdqtool.io.models.working import ModelOrPath, opened, repair
from qdqtool.reduction.checks import Candidate, Check, CommandCheck, CrashCheck, SqnrCheck
from qdqtool.reduction.parts import Parts, Unit
from qdqtool.reduction.prober import Prober
from qdqtool.reduction.smallest import least, smallest

if TYPE_CHECKING:
    from qdqtool.verbs.debug.reduce import Reduce

#: The model that pairs are compared with: without them, and the Relus that quantizers dropped for them.
_FLOAT = "restore-relu,remove-qdq{keep-weights=true}"


@dataclass(frozen=True, kw_only=True)
class Reduction(Warned):
    """The smallest part that still fails.

    Args:
        nodes_before: nodes of the main graph of the whole model.
        nodes: names of the nodes of the part, its pairs and constants included.
        inputs: names of its inputs.
        outputs: names of its outputs.
        failure: how it fails, in words.
        checks: how many parts were checked.
        late: how many of the checks took too long.
        stopped: why the search ended before the part was the smallest; empty where it did not.
        files: what was written: the part, then its feed, then its float model.
    """

    nodes_before: int
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    failure: str
    checks: int
    late: int
    stopped: str
    files: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON-ready: the fields by their names."""
        return {
            "nodes_before": self.nodes_before, "nodes": list(self.nodes), "inputs": list(self.inputs),
            "outputs": list(self.outputs), "failure": self.failure, "checks": self.checks, "late": self.late,
            "stopped": self.stopped, "files": list(self.files),
        }  # fmt: skip


def reduced(asked: Reduce) -> Reduction:
    """``asked``: the search, and the files."""
    _refuse(asked)
    files = list(asked.files())
    work = _prepared(asked, asked.model)
    floats = _floats(asked, work)
    with tempfile.TemporaryDirectory(prefix="qdqtool-") as folder, Prober(asked.timeout) as prober:
        check = _check(asked, prober)
        values = _values(asked, prober, work if floats is None else floats, folder)
        parts = Parts(work, None if floats is None else frozenset(values))
        search = Search(
            parts=parts, check=check, floats=floats, values=parts.named(values), folder=folder, progress=asked.progress,
            most=asked.max_checks, whole=len(main_nodes(work)),
        )  # fmt: skip
        search.run()
    if search.late:
        text = f"{search.late} of {search.checks} checks took longer than {asked.timeout:g} s: not failing"
        pass_on([text], asked.warn)
    written, best = search.best.written(files), search.best
    return Reduction(
        nodes_before=len(main_nodes(work)), nodes=tuple(node.name or node.op_type for node in best.model.graph),
        inputs=tuple(v.name or "" for v in best.model.graph.inputs if not v.is_initializer()),
        outputs=tuple(v.name or "" for v in best.model.graph.outputs), failure=best.failure, checks=search.checks,
        late=search.late, stopped=search.stopped, files=tuple(written),
    )  # fmt: skip


def _prepared(asked: Reduce, model: ModelOrPath) -> ir.Model:
    """A copy of ``model`` with its nodes in order and named, and with types.

    What an operator writes that nobody knows is taken to be of the type of what it reads first: a guess, without which nothing
    could be cut there; a part for which it is wrong fails in another way, or not at all.
    """
    found, _ = opened(model)
    repair(found, asked.warn)
    run_pipeline(found, "give-names,infer-shapes")
    for node in main_nodes(found):
        kind = next((value.type for value in values_read(node) if value.type is not None), None)
        for value in node.outputs:
            value.type = value.type or kind
    return found


def _refuse(asked: Reduce) -> None:
    """Refuse options that do not say what failing means, or say more than that.

    Raises:
        UsageError: the first such.
    """
    given = [asked.check is not None, asked.crashes, asked.min_sqnr is not None]
    if sum(given) != 1:
        hint = "give one of --check CMD, --crashes and --min-sqnr DB"
        raise UsageError("several meanings of failing" if any(given) else "nothing says what failing means", hint=hint)
    if asked.output is None:
        raise UsageError("no output", hint="say where the smallest part goes: -o FILE")
    if asked.check is None and (asked.fail_codes or asked.fail_text is not None):
        raise UsageError("--fail-code and --fail-text are about a command", hint="give --check CMD")
    if asked.min_sqnr is None and asked.float_model is not None:
        raise UsageError("--float is the model to compare with", hint="give --min-sqnr DB")
    if asked.min_sqnr is not None and asked.data is None:
        raise UsageError("no data to compare on", hint="give --data; its first sample is taken")
    if asked.timeout <= 0:
        raise UsageError(f"{asked.timeout:g} seconds for a check", hint="give --timeout a number above 0")


def _check(asked: Reduce, prober: Prober) -> Check:
    """What failing means."""
    if asked.check is not None:
        codes, text = tuple(asked.fail_codes), asked.fail_text or ""
        check = CommandCheck(timeout=asked.timeout, command=asked.check, codes=codes, text=text)
        pass_on(check.warnings, asked.warn)
        return check
    if asked.min_sqnr is not None:
        return SqnrCheck(prober=prober, least=asked.min_sqnr)
    return CrashCheck(prober=prober, optimize=asked.optimize)


def _floats(asked: Reduce, work: ir.Model) -> ir.Model | None:
    """The float model of ``work``; None where none is compared with."""
    if asked.min_sqnr is None:
        return None
    if asked.float_model is None:
        return run_pipeline(work, _FLOAT, copy=True).model
    return _prepared(asked, asked.float_model)


def _values(asked: Reduce, prober: Prober, model: ir.Model, folder: str) -> dict[str, Array]:
    """Name → value in ``model`` on the first sample, up to where it does not run; nothing without data.

    Raises:
        UsageError: it does not run, and is what is compared with.
    """
    data = "random:1" if asked.data is None and asked.crashes else asked.data
    if data is None:
        return {}
    feeds = open_feeds(data, input_specs(model), seed=asked.seed, image=asked.image)
    feed = next(iter(feeds))
    pass_on(feeds.warnings if asked.data is not None else (), asked.warn)
    found, values = _recorded(prober, model, feed, folder)
    if values is None and asked.min_sqnr is not None:
        hint = "`qdqtool check` says more; --float names another"
        raise UsageError(f"the float model does not run: {found}", hint=hint)
    return _before_the_fault(prober, model, feed, folder) if values is None else values


def _recorded(
    prober: Prober, model: ir.Model, feed: Mapping[str, Array], folder: str
) -> tuple[str, dict[str, Array] | None]:
    """Name → value of ``feed`` and of what ``model`` computes from it; None where it does not run, and why."""
    path, given, into = (os.path.join(folder, name) for name in ("whole.onnx", "whole.npz", "values.npz"))
    save(model, path, overwrite=True)
    write_npz(given, feed)
    computed = [value for node in main_nodes(model) for value in node.outputs if value.name]
    constants = {value.name or "": array for value in computed if (array := constant_array(value)) is not None}
    names = [value.name for value in computed if value.name not in constants]
    found = prober.ask("record", model=path, feeds=given, names=[*names, *feed], into=into)
    if "failure" in found:
        return found["message"], None
    with np.load(into) as arrays:
        return "", {**constants, **{name: arrays[name] for name in arrays.files}}


def _before_the_fault(prober: Prober, model: ir.Model, feed: dict[str, Array], folder: str) -> dict[str, Array]:
    """Name → value of the longest beginning of ``model`` that runs, which parts behind it are fed with."""
    parts, best = Parts(model), feed

    def fails(count: int) -> bool:
        nonlocal best
        try:
            part = parts.part(parts.units[:count])
            inputs = {value.name: feed[value.name] for value in part.graph.inputs if value.name in feed}
            values = _recorded(prober, part, inputs, folder)[1]
        except (QdqError, TimeoutError):
            return True
        best = best if values is None or len(values) < len(best) else {**feed, **values}
        return values is None

    least(len(parts.units), fails)
    return best


@dataclass(frozen=True, kw_only=True)
class Found:
    """A part.

    Args:
        model: the part.
        feeds: what its inputs are fed with: what is known, else random numbers; None without data.
        reference: the same part of the float model; None without one.
        failure: how it fails.
    """

    model: ir.Model
    feeds: dict[str, Array] | None
    reference: ir.Model | None
    failure: str = ""

    def files(self, folder: str) -> Candidate:
        """It in files in ``folder``."""
        paths = Candidate(
            model=os.path.join(folder, "part.onnx"),
            feeds=None if self.feeds is None else os.path.join(folder, "part.npz"),
            reference=None if self.reference is None else os.path.join(folder, "part_float.onnx"),
        )
        save(self.model, paths.model)
        if paths.feeds is not None and self.feeds is not None:
            write_npz(paths.feeds, self.feeds)
        if paths.reference is not None and self.reference is not None:
            save(self.reference, paths.reference)
        return paths

    def written(self, files: Sequence[str]) -> list[str]:
        """Write it to ``files``: the part, and where there are such its feed and its float model; the names of those."""
        save(self.model, files[0], overwrite=True)
        if self.feeds is not None:
            write_npz(files[1], self.feeds)
        if self.reference is not None:
            save(self.reference, files[2], overwrite=True)
        there = (True, self.feeds is not None, self.reference is not None)
        return [file for file, is_there in zip(files, there, strict=True) if is_there]


class Enough(Exception):
    """As many checks as were allowed."""


@dataclass(kw_only=True)
class Search:
    """The search in progress.

    Args:
        parts: the units of the model.
        check: what failing means.
        floats: the float model; None where none is compared with.
        values: what parts are fed with; empty without data.
        folder: for the files of parts.
        progress: told what is left, and how many were checked.
        most: how many checks there may be; None for any number.
        whole: nodes of the whole model.
        checks: how many parts were checked.
        late: how many of the checks took too long.
        stopped: why the search ended before its end.
    """

    parts: Parts
    check: Check
    floats: ir.Model | None
    values: Mapping[str, Array]
    folder: str
    progress: StageProgress | None
    most: int | None
    whole: int
    checks: int = 0
    late: int = 0
    stopped: str = ""
    _known: dict[frozenset[Unit], bool] = field(default_factory=dict)
    _best: Found | None = None

    @property
    def best(self) -> Found:
        """The smallest part that fails so far."""
        assert self._best is not None
        return self._best

    def run(self) -> None:
        """Search.

        Raises:
            UsageError: the whole model does not fail.
        """
        units = list(self.parts.units)
        if not self._fails(units):
            hint = "run the check on the model itself; with --check, a fault is an exit status other than 0"
            raise UsageError("the model does not fail: there is nothing to reduce", hint=hint)
        try:
            smallest(units, self._fails, self.parts.above)
            self.parts, self._known = Parts(self.best.model, self.parts.cuts, fine=True), {}
            if self._fails(self.parts.units):
                smallest(self.parts.units, self._fails, self.parts.above)
        except KeyboardInterrupt:
            self.stopped = "interrupted"
        except Enough:
            self.stopped = f"stopped after {self.checks} checks"

    def _fails(self, units: Sequence[Unit]) -> bool:
        key = frozenset(units)
        if key not in self._known:
            if self.most is not None and self.checks >= self.most:
                raise Enough
            self._known[key] = self._checked(units)
        return self._known[key]

    def _checked(self, units: Sequence[Unit]) -> bool:
        """Make the part of ``units``, and check it; one that cannot be made does not fail."""
        try:
            found = self._made(units)
        except QdqError:
            return False
        if self.progress is not None:
            left = len(main_nodes((self._best or found).model))
            self.progress(f"{self.whole} nodes → {left}", self.checks, None)
        self.checks += 1
        failure = None
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            try:
                failure = self.check(found.files(folder))
            except TimeoutError:
                self.late += 1
        if failure is None:
            return False
        if self._best is None or len(main_nodes(found.model)) <= len(main_nodes(self._best.model)):
            self._best = replace(found, failure=failure)
        return True

    def _made(self, units: Sequence[Unit]) -> Found:
        """The part of ``units``.

        Raises:
            QdqError: it cannot be made.
        """
        model = self.parts.part(units, self.values)
        drawn = next(iter(open_feeds("random:1", input_specs(model)))) if self.values else {}
        return Found(
            model=model,
            feeds={name: self.values.get(name, array) for name, array in drawn.items()} if self.values else None,
            reference=None if self.floats is None else self.parts.reference(units, self.floats, self.values),
        )
