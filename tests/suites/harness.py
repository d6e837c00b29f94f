"""One case through load → save and through every step, each result against a single run of the original."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import onnx
import onnx_ir as ir
from qdq_passes.core.base import EXACT, Keeps
from qdq_passes.errors import QdqError, UnsupportedError
from qdq_passes.graph.uses import all_nodes
from qdq_passes.pipeline.pipeline import Pipeline
from qdq_passes.verification.rules import Finding, new_errors, verify

from tests.suites.agree import difference
from tests.suites.cases import Case
from tests.suites.engines import ENGINES, REFERENCE, Outputs
from tests.suites.files import loaded, saved, to_bytes
from tests.suites.limits import without_kernel
from tests.suites.steps import Step

#: The step before all others.
ROUND_TRIP = "load → save"
#: Of so many models that a step says to have left alone, the bytes of one are compared.
BYTES_OF = 4

#: ``same``: nothing changed, nor did the bytes · ``agrees``: the outputs are what the step promises · ``accepted``: no outputs
#: to compare; checker and verifier find no new error · ``refused``: UnsupportedError, and the model is as it was · ``failed``.
Status = Literal["same", "agrees", "accepted", "refused", "failed"]


@dataclass(frozen=True)
class Result:
    """What came of one case in one step.

    Args:
        status: see `Status`.
        detail: why it was refused or failed, in one line.
    """

    status: Status
    detail: str = ""


@dataclass
class Original:
    """A case and what it gives before anything is done to it.

    Args:
        case: the case.
        engine: what runs it, None when nothing does.
        refusal: why onnx.checker does not accept it, None when it does.
        lacking: its operators that onnxruntime has no kernel for.
        known: outputs per feed, or why there are none, of what was run: the original and edited models, by engine and bytes.
    """

    case: Case
    engine: str | None
    refusal: str | None
    lacking: frozenset[str]
    known: dict[tuple[str, bytes], list[Outputs] | str] = field(default_factory=dict)

    @classmethod
    def of(cls, case: Case) -> Original:
        """Run the case once, in the first engine that takes it."""
        refusal, lacking = checker_refusal(case.model), without_kernel(case.model)
        for engine in ENGINES:
            found = _run(engine, case, case.model)
            if not isinstance(found, str):
                return cls(case, engine, refusal, lacking, {(engine, case.model): found})
        return cls(case, None, refusal, lacking)

    def judge(self, model: bytes, keeps: Keeps, *, runs: bool = True) -> Result:
        """Whether ``model``, made of this one, is what ``keeps`` promises, and whether it runs (left out unless ``runs``)."""
        if self.refusal is None and (refusal := checker_refusal(model)) is not None:
            return Result("failed", f"onnx.checker no longer accepts it: {refusal}")
        if self.engine is None or not runs:
            return Result("accepted")
        engine = self.engine if without_kernel(model) == self.lacking else REFERENCE
        expected, found = self._outputs(engine, self.case.model), self._outputs(engine, model)
        if isinstance(expected, str):
            return Result("failed", f"{engine}, needed where onnxruntime lacks a kernel, does not run it: {expected}")
        if isinstance(found, str):
            return Result("failed", f"{engine} no longer runs it: {found}")
        if keeps.numerics == "changes":
            return Result("accepted")
        bound = keeps.bound if keeps.numerics == "bounded" else None
        faults = (difference(old, new, bound) for old, new in zip(expected, found, strict=True))
        fault = next((f for f in faults if f is not None), None)
        return Result("agrees") if fault is None else Result("failed", f"{engine}: {fault}")

    def _outputs(self, engine: str, model: bytes) -> list[Outputs] | str:
        if (engine, model) not in self.known:
            self.known[engine, model] = _run(engine, self.case, model)
        return self.known[engine, model]


@dataclass(frozen=True)
class Examination:
    """Everything that came of one case.

    Args:
        case: its name.
        engine: what ran it, None when nothing does.
        results: by the text of the step, `ROUND_TRIP` first.
        runs: how many models were run, the original included.
    """

    case: str
    engine: str | None
    results: dict[str, Result]
    runs: int


def examine(case: Case, steps: Iterable[Step], folder: Path) -> Examination:
    """Take one case through everything. When it cannot be loaded, that is the only result."""
    original = Original.of(case)
    results: dict[str, Result] = {}
    file = folder / "model.onnx"
    file.write_bytes(case.model)
    try:
        model = loaded(file)
        results[ROUND_TRIP] = original.judge(saved(model, folder / "saved.onnx"), EXACT)
        before, findings = to_bytes(model), verify(model)
    except Exception as error:  # noqa: BLE001 (whatever it is, it is what came of this case)
        results[ROUND_TRIP] = Result("failed", _line(error))
        return Examination(case.name, original.engine, results, len(original.known))
    ops = {node.op_type for node in all_nodes(model)}
    for step in steps:
        if ops & step.without:
            continue
        results[step.text] = _try(step, model, before, findings, original, file)
        if results[step.text].status != "same":
            model = loaded(file)
    return Examination(case.name, original.engine, results, len(original.known))


def _try(step: Step, model: ir.Model, before: bytes, findings: list[Finding], original: Original, file: Path) -> Result:
    """The result of ``step`` on ``model``, read from ``file``, whose bytes are ``before``. Only after ``same`` is it as it was."""
    try:
        is_modified = step.pipeline.run(model).modified
        if not is_modified and not _is_looked_at(original.case, step):
            return Result("same")
        after = to_bytes(model)
    except UnsupportedError as error:
        if _is_written_as(model, before) or _is_left_as_found(step, file):
            return Result("refused", _line(error))
        return Result("failed", f"refused, but changed the model first: {_line(error)}")
    except Exception as error:  # noqa: BLE001 (a pass may fail in any way, and so may writing what it leaves)
        return Result("failed", f"crashed: {_line(error)}")
    if not is_modified:
        return Result("same") if after == before else Result("failed", "reports no change, but the bytes differ")
    errors = new_errors(findings, verify(model))
    if errors:
        return Result("failed", f"{len(errors)} new errors: {errors[0]}")
    return original.judge(after, step.keeps, runs=step.runs or step.keeps.numerics != "changes")


def _is_left_as_found(step: Step, file: Path) -> bool:
    """Whether the pass that refuses, one behind others that may have changed the model, leaves it as those made it."""
    passes = step.pipeline.passes
    model = loaded(file)
    for pass_ in passes:
        before = to_bytes(model)
        try:
            Pipeline((pass_,)).run(model)
        except UnsupportedError:
            return pass_ is not passes[0] and _is_written_as(model, before)
    return False


def _is_looked_at(case: Case, step: Step) -> bool:
    """Whether "nothing changed" is held against the bytes: for one in `BYTES_OF` models, other ones for every step. To write every
    model after every pass that left it alone took a third of the suite's time."""
    return zlib.crc32(f"{case.name} {step.text}".encode()) % BYTES_OF == 0


def _is_written_as(model: ir.Model, expected: bytes) -> bool:
    try:
        return to_bytes(model) == expected
    except QdqError:
        return False


def checker_refusal(model: bytes) -> str | None:
    """None when onnx.checker accepts the model with full_check, else its reason."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return _line(error)
    return None


def _run(engine: str, case: Case, model: bytes) -> list[Outputs] | str:
    try:
        return [ENGINES[engine](model, feed) for feed in case.feeds]
    except Exception as error:  # noqa: BLE001 (an engine refuses in many ways)
        return _line(error)


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    kind = "" if isinstance(error, QdqError) else f"{type(error).__name__}: "
    return kind + (text if len(text) <= 300 else text[:300] + "…")
