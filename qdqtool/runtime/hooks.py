"""The numeric check: run sample feeds before and after each pass, and hold the pass to what it declares under *Keeps*."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from qdq_passes.core.base import Change, Pass, is_modified
from qdq_passes.errors import CheckError, QdqError, UnsupportedError, VerifyError
from qdq_passes.graph.uses import all_nodes
from qdq_passes.pipeline.text import format_pass

from qdqtool.runtime.session import open_session

Feed = Mapping[str, npt.NDArray[Any]]
Outputs = list[dict[str, Any]]

#: Operators that give other numbers every time unless they have a seed.
RANDOM_OPS = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}


class NumericCheck:
    """A pipeline hook. Passes that declare ``changes`` are not checked, nor those that changed nothing.

    Args:
        feeds: sample feeds; the first ``samples`` are held in memory, and the outputs they give.
        samples: how many to take.

    Attributes:
        unchecked: (pass text, why) of each pass that could not be checked: onnxruntime does not load the model as it came,
            or it draws random numbers.
    """

    def __init__(self, feeds: Iterable[Feed], *, samples: int = 4) -> None:
        self._feeds: list[dict[str, npt.NDArray[Any]]] = [dict(f) for f in itertools.islice(feeds, samples)]
        self._before: Outputs | None = None
        self._why = ""
        self.unchecked: list[tuple[str, str]] = []

    def before(self, pass_: Pass, model: ir.Model) -> None:
        """Run the feeds, unless the run after the pass before still stands."""
        if self._before is not None or pass_.keeps.numerics == "changes":
            return
        self._why = "the model draws random numbers" if _is_random(model) else ""
        if not self._why:
            try:
                self._before = self._run(model)
            except QdqError as error:
                self._why = str(error)

    def after(self, pass_: Pass, model: ir.Model, changes: Sequence[Change]) -> None:
        """Run the feeds again and compare.

        Raises:
            VerifyError: an output of an exact pass differs, is gone or new, or the model no longer runs.
            CheckError: an output differs by more than the bound that the pass declares.
        """
        if pass_.keeps.numerics == "changes":
            if is_modified(list(changes)):
                self._before = None
            return
        if self._before is None:
            self.unchecked.append((format_pass(pass_), self._why))
        elif is_modified(list(changes)):
            before, self._before = self._before, None
            self._before = self._compared(pass_, model, before)

    def on_error(self, pass_: Pass, model: ir.Model, error: Exception) -> None:
        """Forget what is known: the model may be half edited."""
        self._before = None

    def _run(self, model: ir.Model) -> Outputs:
        session = open_session(model)
        return [session.run(feed) for feed in self._feeds]

    def _compared(self, pass_: Pass, model: ir.Model, before: Outputs) -> Outputs | None:
        text = format_pass(pass_)
        try:
            after = self._run(model)
        except UnsupportedError as error:  # for example an opset this onnxruntime does not know: no proof of a fault
            self.unchecked.append((text, str(error)))
            return None
        except QdqError as error:
            raise VerifyError(
                f"after pass {text} the model no longer runs: {error.message}", where=error.where
            ) from error
        for sample, (old, new) in enumerate(zip(before, after, strict=True)):
            if list(old) != list(new):
                raise VerifyError(f"pass {text} changed the outputs from {', '.join(old)} to {', '.join(new)}")
            for name in old:
                fault = _fault(pass_, old[name], new[name])
                if fault:
                    is_bug = pass_.keeps.numerics == "exact"
                    kind = VerifyError if is_bug else CheckError
                    hint = None if is_bug else f"the bound holds {pass_.keeps.why}"
                    raise kind(f"pass {text} {fault} in sample {sample}", where=f"output {name!r}", hint=hint)
        return after


def _fault(pass_: Pass, old: Any, new: Any) -> str | None:
    """How ``new`` breaks what the pass keeps of ``old``; None when it does not."""
    if not (isinstance(old, np.ndarray) and isinstance(new, np.ndarray)):
        return None if repr(old) == repr(new) else "changed a value that is no tensor"
    if (old.dtype, old.shape) != (new.dtype, new.shape):
        return f"changed {old.dtype} {list(old.shape)} into {new.dtype} {list(new.shape)}"
    if same_bits(old, new):
        return None
    if old.dtype.kind in "OSUb" or not old.size:
        return "changed values it promises to keep bit by bit"
    x, y = old.astype(np.float64), new.astype(np.float64)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore", over="ignore"):
        largest = float(np.max(np.where(same, 0.0, np.abs(x - y))))
        peak = float(np.max(np.abs(x[np.isfinite(x)]), initial=0.0))
    keeps = pass_.keeps
    if keeps.numerics == "bounded" and largest <= keeps.bound * peak:
        return None
    figures = f"max |difference| {largest:.6g}, max |output| {peak:.6g}"
    if keeps.numerics == "bounded":
        return f"exceeds its bound {keeps.bound:g} x max |output|: {figures}"
    return f"changed values it promises to keep bit by bit: {figures}"


def same_bits(x: npt.NDArray[Any], y: npt.NDArray[Any]) -> bool:
    """Whether two arrays have the same type, shape and bits; NaN equals any NaN, −0 differs from 0."""
    if (x.dtype, x.shape) != (y.dtype, y.shape):
        return False
    if x.dtype.kind in "OSU":
        return bool(np.array_equal(x, y))
    bits = np.dtype(f"u{x.dtype.itemsize}") if x.dtype.itemsize <= 8 and x.dtype.kind != "c" else np.dtype(np.uint8)
    a, b = np.ascontiguousarray(x).reshape(-1).view(bits), np.ascontiguousarray(y).reshape(-1).view(bits)
    if np.array_equal(a, b):
        return True
    if x.dtype.kind not in "fV":
        return False
    nan = (np.isnan(x) & np.isnan(y)).reshape(-1)
    return bool(np.array_equal(a[~nan], b[~nan]))


def _is_random(model: ir.Model) -> bool:
    return any(node.op_type in RANDOM_OPS and "seed" not in node.attributes for node in all_nodes(model))
