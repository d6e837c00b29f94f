"""The pass contract: a pass is a frozen dataclass whose fields are its options and whose ``run`` yields what it changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, Literal

import onnx_ir as ir

from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.names import kebab_case
from qdq_passes.errors import UsageError


@dataclass(frozen=True)
class Change:
    """One thing a pass did (or declined to do) to the graph.

    Args:
        kind: what happened, a verb: ``"remove"``, ``"insert"``, ``"replace"``, ``"annotate"``, ``"rename"``… or ``"skip"``.
        where: name of the node or value concerned.
        because: the reason, in words.
    """

    kind: str
    where: str
    because: str = ""

    @property
    def is_skip(self) -> bool:
        """Whether this records a polite refusal; the graph was left as it is."""
        return self.kind == "skip"

    def __str__(self) -> str:
        return f"{self.kind} {self.where}: {self.because}" if self.because else f"{self.kind} {self.where}"


def skip(where: ir.Node | ir.Value | str, because: str) -> Change:
    """The record of a rule that declines at ``where``; shown by ``-v``, never counted as a modification."""
    return Change("skip", where if isinstance(where, str) else where.name or "<unnamed>", because)


@dataclass(frozen=True)
class Keeps:
    """What a pass promises about the numbers the model computes.

    Args:
        numerics: ``"exact"`` (every output bit-identical), ``"bounded"`` (see ``bound``) or ``"changes"`` (the function is
            another one on purpose: quantization, cutting, new names of outputs…).
        bound: for ``"bounded"``: the largest absolute difference allowed, in units of the largest magnitude of the
            output tensor it occurs in (dimensionless).
        why: the derivation of the bound, or what changes.
    """

    numerics: Literal["exact", "bounded", "changes"]
    bound: float = 0.0
    why: str = ""


EXACT = Keeps("exact")


@dataclass(frozen=True)
class Named:
    """A named input of a pipeline, written ``@name`` in its text and bound when the pipeline runs."""

    name: str

    def __str__(self) -> str:
        return f"@{self.name}"


@dataclass(frozen=True)
class Pass:
    """Base class of all passes. Subclasses are frozen dataclasses; their fields are the options of the command line.

    Subclasses implement ``run``. It edits ``model`` in place and yields a `Change` for everything it did or declined;
    it is always run to the end. The name of a pass follows from its class: ``FoldBatchNorm`` is ``fold-batch-norm``.
    """

    #: What the pass keeps; a property where it depends on the options.
    keeps: ClassVar[Keeps] = EXACT
    #: Named inputs that it makes for the passes behind it, and what reads each once it ran. Where all are bound, it is not run.
    gives: ClassVar[Mapping[str, Callable[[ir.Model], object]]] = {}

    @classmethod
    def name(cls) -> str:
        """The name used on the command line and in pipeline texts."""
        return kebab_case(cls.__name__)

    @classmethod
    def family(cls) -> str:
        """The folder of its file: ``fuse``."""
        return cls.__module__.rpartition(".")[0].rpartition(".")[2]

    def run(self, model: ir.Model) -> Iterator[Change]:
        """Edit ``model`` in place and yield what changed."""
        raise NotImplementedError(f"{type(self).__name__} has no run")

    def __call__(self, model: ir.Model) -> list[Change]:
        """Run the pass alone, to its end, and return its changes and skips in the order they happened.

        Raises:
            UsageError: a named input of the pass is unbound (see `Pipeline.run`).
        """
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Named):
                raise UsageError(
                    f"option {field.name} needs the named input {value}",
                    where=self.name(),
                    hint=f"run it in a pipeline with inputs={{'{value.name}': …}}",
                )
        return list(self.run(model))


def is_modified(changes: list[Change]) -> bool:
    """Whether any of ``changes`` is more than a skip."""
    return any(not change.is_skip for change in changes)
