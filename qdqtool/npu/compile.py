"""From a QDQ model to one that holds programs: assign, lower, put each partition into an EPContext node."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.graph.annotate import TARGET, Placement
from qdq_passes.graph.edit import Namer, copy_model, drop_unused_domains
from qdq_passes.graph.operators.qdq_ops import is_qdq
from qdq_passes.graph.uses import all_values, is_standard, main_nodes
from qdq_passes.npu.lower import PASSES
from qdq_passes.npu.partitions.partitions import Partitioning, placements
from qdq_passes.npu.program import DOMAIN
from qdq_passes.npu.units.verdict import Boundary, Verdict
from qdq_passes.pipeline.pipeline import Hook, run_pipeline

from qdqtool.io.files.progress import Warned
from qdqtool.io.models.provenance import own_version
from qdqtool.io.models.versions import IR_VERSION
from qdqtool.npu.compiled import refuse_compiled
from qdqtool.npu.payload import Header
from qdqtool.npu.programs import CONTEXT_DOMAIN, payload_of, program_of, put_context
from qdqtool.targets.target import Target

#: The passes that turn what is assigned to the NPU into operators of programs.
LOWER = ",".join(f"{name}{{target=@target}}" for name in PASSES)
#: Element types that came after IR version 10: a model with one of them keeps its version.
_NEWER_TYPES = {
    ir.DataType[name] for name in ("FLOAT4E2M1", "FLOAT8E8M0", "UINT2", "INT2") if name in ir.DataType.__members__
}


@dataclass(frozen=True, kw_only=True)
class Part:
    """A partition that became a program.

    Args:
        name: of its EPContext node.
        nodes: operators of the program.
        inputs: names of what it reads.
        outputs: names of what it writes.
        bytes: of its payload; 0 before it is compiled.
    """

    name: str
    nodes: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "name": self.name,
            "nodes": self.nodes,
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "bytes": self.bytes,
        }


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why operators run on the CPU.

    Args:
        rule: id of the rule that decided.
        reason: of the first of them, in words.
        nodes: how many.
    """

    rule: str
    reason: str
    nodes: int


@dataclass(frozen=True, kw_only=True)
class Lowered(Warned):
    """A model whose partitions are programs, and the story of it.

    Args:
        model: the model.
        target: name of the target.
        npu_nodes: operators of the QDQ model that the NPU computes (Q, DQ and constants do not count).
        cpu_nodes: those that the CPU computes.
        reasons: why the latter, the most frequent first.
        parts: what each partition became.
        files: what was written: the model, then what lies beside it.
    """

    model: ir.Model
    target: str
    npu_nodes: int
    cpu_nodes: int
    reasons: tuple[Reason, ...]
    parts: tuple[Part, ...] = ()
    files: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "target": self.target,
            "npu_nodes": self.npu_nodes,
            "cpu_nodes": self.cpu_nodes,
            "reasons": [dataclasses.asdict(reason) for reason in self.reasons],
            "partitions": [part.to_json() for part in self.parts],
            "files": list(self.files),
        }


def lower(model: ir.Model, target: Target, *, boundary: Boundary | None = None, hooks: Iterable[Hook] = ()) -> Lowered:
    """``model`` with integer operators of ai.qdqtool where the NPU of ``target`` computes; the rest stays as it is.

    Args:
        model: QDQ; it is not changed.
        target: the target.
        boundary: where Q and DQ at float inputs and outputs run, where not as the target says.
        hooks: pipeline hooks.

    Raises:
        UsageError: ``model`` is compiled already.
    """
    refuse_compiled(model, target)
    work = copy_model(model)
    run_pipeline(work, preparation(boundary), inputs={"target": target}, hooks=hooks)
    return _lowered(work, target, hooks)


def _lowered(work: ir.Model, target: Target, hooks: Iterable[Hook]) -> Lowered:
    """``work``, whose nodes are assigned, with operators of ai.qdqtool; it is edited."""
    placed = [
        placement for node in main_nodes(work) if is_operator(node) and (placement := TARGET.get(node)) is not None
    ]
    run_pipeline(work, LOWER, inputs={"target": target}, hooks=hooks)
    on_cpu = [placement for placement in placed if placement.partition is None]
    return Lowered(
        model=work,
        target=target.name,
        npu_nodes=len(placed) - len(on_cpu),
        cpu_nodes=len(on_cpu),
        reasons=reasons_of(on_cpu),
        parts=tuple(_part(work, number, nodes) for number, nodes in sorted(_members(work).items())),
    )


def compile(
    model: ir.Model, target: Target, *, boundary: Boundary | None = None, hooks: Iterable[Hook] = ()
) -> Lowered:
    """``model`` with an EPContext node in the place of each partition; arguments as `lower`.

    The result is of IR version 10 at most where that can be: every onnxruntime that has plugin providers loads it.
    """
    return _compiled(lower(model, target, boundary=boundary, hooks=hooks), target)


def compile_partitions(model: ir.Model, found: Partitioning, target: Target) -> Lowered:
    """As `compile`, of a model that is partitioned already.

    Args:
        model: prepared (`infer-shapes,lift-constants`); it is edited.
        found: its partitions.
        target: the target.

    Raises:
        UsageError: ``model`` is compiled already.
    """
    refuse_compiled(model, target)
    for node, placement in placements(model, found).items():
        TARGET.set(node, placement)
    return _compiled(_lowered(model, target, ()), target)


def _compiled(done: Lowered, target: Target) -> Lowered:
    work, namer, parts = done.model, Namer(done.model), []
    for number, nodes in sorted(_members(work).items()):
        part = _part(work, number, nodes)
        program = program_of(work, nodes, part.name)
        payload = payload_of(program, header_of(target))
        put_context(nodes, program, payload, namer)
        parts.append(dataclasses.replace(part, bytes=len(payload)))
    if parts:
        work.opset_imports.setdefault(CONTEXT_DOMAIN, 1)
        run_pipeline(work, "sort")
    drop_unused_domains(work, [DOMAIN])
    if (work.ir_version or 0) > IR_VERSION and not any(value.dtype in _NEWER_TYPES for value in all_values(work)):
        work.ir_version = IR_VERSION
    return dataclasses.replace(done, parts=tuple(parts))


def nothing_runs(target: str, reasons: Sequence[Reason]) -> str:
    """In words, that a model has nothing for ``target``, and the most frequent of the ``reasons``."""
    text = f"nothing of the model runs on {target}, so there is no program"
    if not reasons:
        return f"{text}: it has no operators"
    return f"{text}; {reasons[0].nodes} of {sum(r.nodes for r in reasons)} operators: {reasons[0].reason}"


def preparation(boundary: Boundary | None = None) -> str:
    """The passes before lowering: shapes, constants where programs have them, who computes what."""
    option = "" if boundary is None else f" boundary={boundary}"
    return f"infer-shapes,lift-constants,assign-targets{{target=@target{option}}}"


def header_of(target: Target) -> Header:
    """What programs that are made now for ``target`` say of themselves."""
    return Header(target=target.name, target_version=target.version, target_sha256=target.sha256, qdqtool=own_version())


def is_operator(node: ir.Node) -> bool:
    """Whether ``node`` counts as one: Q, DQ and constants do not."""
    return not (is_qdq(node) or is_standard(node, "Constant"))


def reasons_of(judged: Sequence[Placement | Verdict]) -> tuple[Reason, ...]:
    """Why operators run on the CPU, the most frequent first, of what was said of each."""
    counts = Counter(one.rule for one in judged)
    first = {one.rule: one for one in reversed(judged)}
    return tuple(
        Reason(rule=rule, reason=first[rule].reason or rule, nodes=count) for rule, count in counts.most_common()
    )


def _members(model: ir.Model) -> dict[int, list[ir.Node]]:
    """Partition → its nodes, in order."""
    found: dict[int, list[ir.Node]] = {}
    for node in main_nodes(model):
        placement = TARGET.get(node)
        if placement is not None and placement.partition is not None:
            found.setdefault(placement.partition, []).append(node)
    return found


def _part(model: ir.Model, number: int, nodes: list[ir.Node]) -> Part:
    program = program_of(model, nodes, f"npu_{number}")
    names = [tuple(v.name or "" for v in values) for values in (program.graph.inputs, program.graph.outputs)]
    return Part(name=f"npu_{number}", nodes=len(nodes), inputs=names[0], outputs=names[1])
