"""Hooks that need nothing from above: verify after each pass, stop after N."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.base import Change, Pass, is_modified
from qdq_passes.core.findings import broken_by
from qdq_passes.errors import QdqError
from qdq_passes.pipeline.pipeline import Hook, StopPipeline
from qdq_passes.pipeline.text import format_pass
from qdq_passes.verification.rules import Finding, new_errors, verify

#: Environment variable that has `requested_checks` verify after each pass.
VERIFY_EACH = "QDQTOOL_VERIFY_EACH"


class QuietHook:
    """A hook that does nothing; the others override what they need."""

    def before(self, pass_: Pass, model: ir.Model) -> None:
        """Nothing."""

    def after(self, pass_: Pass, model: ir.Model, changes: Sequence[Change]) -> None:
        """Nothing."""

    def on_error(self, pass_: Pass, model: ir.Model, error: Exception) -> None:
        """Nothing."""


@dataclass
class VerifyEach(QuietHook):
    """Verify after each pass; an error the model did not have before is the pass's fault."""

    known: list[Finding] | None = None

    def before(self, pass_: Pass, model: ir.Model) -> None:
        """Remember the errors the input came with."""
        if self.known is None:
            self.known = verify(model, minimum="error")

    def after(self, pass_: Pass, model: ir.Model, changes: Sequence[Change]) -> None:
        """Raise `VerifyError` for the first new error; a pass that changed nothing is not looked at."""
        if not is_modified(list(changes)):
            return
        refuse_new(model, self.known or [], f"pass {format_pass(pass_)}")


def requested_checks(known: Sequence[Finding]) -> tuple[Hook, ...]:
    """`VerifyEach` where the environment asks for it by `VERIFY_EACH`, as tests do, so that an error names its pass; else none.

    The caller verifies the result.

    Args:
        known: errors that the model came with.
    """
    return (VerifyEach(list(known)),) if os.environ.get(VERIFY_EACH) else ()


@contextmanager
def naming_the_pass() -> Iterator[None]:
    """Add to an error of ours how to find the pass that made it, where passes are not verified one by one."""
    try:
        yield
    except QdqError as error:
        repair = f"set {VERIFY_EACH}=1 and run again: the error then names the pass"
        is_ours = error.exit_code == QdqError.exit_code
        if is_ours and not os.environ.get(VERIFY_EACH) and repair not in (error.hint or ""):
            error.hint = repair if error.hint is None else f"{error.hint}; {repair}"
        raise


def refuse_new(model: ir.Model, known: Sequence[Finding], by: str) -> None:
    """Raise `VerifyError` for the first error of ``model`` that is not ``known``; ``by`` says what made it."""
    for finding in new_errors(known, verify(model, minimum="error")):
        raise broken_by(finding, known, model, by)


@dataclass
class StopAfter(QuietHook):
    """End the run after ``count`` passes."""

    count: int
    _done: int = 0

    def before(self, pass_: Pass, model: ir.Model) -> None:
        """Stop when ``count`` passes ran."""
        if self._done >= self.count:
            raise StopPipeline
        self._done += 1
