"""Compiling at the time a session is created: the provider's library asks which nodes to take, then for the program of each part.

Both questions come from the thread that creates the session, the second with nothing but the nodes of one part: a pair that stays
outside, because others read it too, is a float input there. What its integers were is remembered between the two."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any, cast, get_args

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.core.toml_registry import SUFFIX
from qdq_passes.errors import UnsupportedError, UsageError
from qdq_passes.graph.annotate import TARGET, Placement
from qdq_passes.graph.edit import Namer, new_constant, put_first
from qdq_passes.graph.operators.qdq_ops import is_dequantize, is_qdq, is_quantize
from qdq_passes.graph.shapes.inference import infer_shapes
from qdq_passes.graph.uses import constant_array, is_standard, label, main_nodes
from qdq_passes.npu.partitions.partitions import Partitioning, partition_for
from qdq_passes.npu.program.operands import stored_integers
from qdq_passes.npu.program.operators import why_no_kernel, why_not_computable
from qdq_passes.npu.units.units import operands_of, units_of
from qdq_passes.npu.units.verdict import Boundary, VerdictKind
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.quantize import quantize
from qdq_passes.pipeline.pipeline import run_pipeline
from qdq_passes.qdq.edit.pairs import dequantize_node, insert_pairs, parameters
from qdq_passes.qdq.look.pairs import encoding_of

from qdqtool.npu.compile import LOWER, header_of, is_operator, nothing_runs, reasons_of
from qdqtool.npu.payload import Header, refuse_stale
from qdqtool.npu.programs import payload_of, program_of
from qdqtool.runtime.provider import read_graph
from qdqtool.targets import TARGETS
from qdqtool.targets.loading import load_target
from qdqtool.targets.target import Target

#: Entry of a session's configuration: "1" where nothing may run on onnxruntime's CPU provider.
NO_FALLBACK = "session.disable_cpu_ep_fallback"
#: Entry of a session's configuration: "1" where it writes the compiled model.
CONTEXT_ENABLE = "ep.context_enable"
#: Nodes named in the message of what may not fall back.
SHOWN = 3


@dataclass(frozen=True, eq=False, kw_only=True)
class Outside:
    """A value that a part reads, whose DequantizeLinear, or the QuantizeLinear of a pair on a constant, is not in it.

    Args:
        encoding: its encoding.
        integers: its data, where they are constant.
        is_real: whether the value is the dequantized one, not the integers.
    """

    encoding: Encoding
    integers: npt.NDArray[Any] | None = None
    is_real: bool = True


class _Remembered(threading.local):
    """Of the graph that this thread asked about last: name of a value → what it is, and the kind of verdict on its writer."""

    def __init__(self) -> None:
        self.outside: dict[str, Outside] = {}
        self.kinds: dict[str, VerdictKind] = {}


class JitCompiler:
    """What `qdqtool.runtime.provider` attaches to the library. Usable from several threads.

    Options: ``target``, name or file (needed); ``boundary``, cpu or npu, where not as the target says.
    """

    def __init__(self) -> None:
        self._remembered = _Remembered()

    def partition(self, model: bytes | ir.Model, options: Mapping[str, str]) -> list[list[int]]:
        """The nodes of each partition, as indices into the nodes of the main graph.

        Args:
            model: what `read_graph` reads, or a model, whose order of nodes stays.
            options: see `JitCompiler`.

        Raises:
            UsageError: no target, or an option that means nothing.
            UnsupportedError: nodes would run on the CPU, and may not; or a compiled model is to be written of nothing.
        """
        target, boundary = _settings(options)
        graph = read_graph(model) if isinstance(model, bytes) else model
        no_fallback = options.get(NO_FALLBACK) == "1"
        _know_shapes(graph)
        found = partition_for(graph, target, boundary or ("npu" if no_fallback else None))
        if no_fallback:
            _refuse_fallback(graph, found, target)
        if options.get(CONTEXT_ENABLE) == "1" and not found.partitions:
            judged = [v for n in main_nodes(graph) if is_operator(n) and (v := found.verdict_of.get(n)) is not None]
            hint = f"leave {CONTEXT_ENABLE} out, or see `qdqtool analyze`"
            raise UnsupportedError(nothing_runs(target.name, reasons_of(judged)), hint=hint)
        self._remembered.outside = _outside(found)
        self._remembered.kinds = _kinds(found)
        return [list(partition.indices) for partition in found.partitions]

    def lower(self, model: bytes | ir.Model, options: Mapping[str, str]) -> bytes:
        """The payload for a graph that is one of the partitions.

        Raises:
            UnsupportedError: it cannot be computed; a bug, or another graph than the one that was asked about.
        """
        target, _ = _settings(options)
        part = read_graph(model) if isinstance(model, bytes) else model
        remembered = self._remembered
        return payload_of(lowered_part(part, target, remembered.outside, remembered.kinds), header_of(target))

    def check(self, header: Mapping[str, str], options: Mapping[str, str]) -> None:
        """Refuse a program that was compiled for the target of ``options`` as it was, and is not any more.

        The library compares the names itself; a name that stands for no file here has nothing more to compare.

        Args:
            header: fields of a `Header`.
            options: see `JitCompiler`.

        Raises:
            UsageError: the target's file is not there.
            ModelError: expected one version of the target, found another.
        """
        name = options.get("target", "")
        if name.endswith(SUFFIX) or name in TARGETS.names():
            refuse_stale(Header(**header), load_target(name))


def lowered_part(
    part: ir.Model, target: Target, outside: Mapping[str, Outside], kinds: Mapping[str, VerdictKind]
) -> ir.Model:
    """The program of a graph all of which the NPU computes; ``part`` is edited.

    Args:
        part: nodes of one partition; its inputs and outputs keep their names and order.
        target: the target.
        outside: of those inputs that are floats which were dequantized outside.
        kinds: of verdicts, by the name of the first output of a unit's operator, as they were of the whole graph; where one is
            missing the target judges anew.
    """
    inputs, name = list(part.graph.inputs), part.graph.name or "npu"
    _restore(part, outside)
    _know_shapes(part)
    placement = Placement(device=target.name, verdict="npu-int", rule="partition", partition=0)
    for node in main_nodes(part):
        TARGET.set(node, placement)
    for unit in units_of(part):
        kind = kinds.get(unit.core.outputs[0].name or "") or target.judge(unit).kind
        if kind == "npu-float":
            for node in unit.nodes:
                TARGET.set(node, dataclasses.replace(placement, verdict=kind))
    run_pipeline(part, f"lift-constants,{LOWER}", inputs={"target": target})
    for unit in units_of(part):
        placed = TARGET.get(unit.core)
        in_float = placed is not None and placed.verdict == "npu-float"
        why = why_not_computable(unit, target.arithmetic, in_float=in_float)
        if why is not None and why_no_kernel(unit.core) is not None:
            raise UnsupportedError(f"cannot be computed in this part of the graph: {why}", where=label(unit.core))
    program = program_of(part, main_nodes(part), name)
    read = {value.name for value in program.graph.inputs}
    for value in inputs:  # those of pairs that are inside now are read no more, and are inputs of the node all the same
        if value.name not in read and not value.is_initializer():
            program.graph.inputs.append(ir.Value(name=value.name, type=value.type, shape=value.shape))
    return program


def boundary_of(text: str | None) -> Boundary | None:
    """The option ``boundary``; None where it is left out, or empty.

    Raises:
        UsageError: it means nothing.
    """
    if text not in (None, "", *get_args(Boundary)):
        raise UsageError(f"boundary is {text!r}", hint=f"{' or '.join(get_args(Boundary))}")
    return cast(Boundary, text) if text else None


def _settings(options: Mapping[str, str]) -> tuple[Target, Boundary | None]:
    name = options.get("target", "")
    if not name:
        raise UsageError(
            "the simulated NPU needs a target", hint='give the provider the option {"target": "vitis_xint8"}'
        )
    return load_target(name), boundary_of(options.get("boundary"))


def _know_shapes(model: ir.Model) -> None:
    """Infer what onnxruntime has not: it types and shapes every value that it can."""
    if any(value.dtype is None or value.shape is None for node in model.graph for value in node.outputs if value.name):
        infer_shapes(model)


def _refuse_fallback(model: ir.Model, found: Partitioning, target: Target) -> None:
    on_cpu = [
        node for node in main_nodes(model) if node not in found.partition_of and not is_standard(node, "Constant")
    ]
    if not on_cpu:
        return
    on_cpu.sort(key=lambda node: is_qdq(node))  # their neighbours say why
    shown = []
    for node in on_cpu[:SHOWN]:
        verdict = found.verdict_of.get(node)
        shown.append(f"{label(node)} ({verdict.reason or verdict.rule if verdict else node.op_type})")
    more = f" and {len(on_cpu) - SHOWN} more" if len(on_cpu) > SHOWN else ""
    raise UnsupportedError(
        f"{len(on_cpu)} nodes do not run on {target.name}, and the CPU may not run them: {'; '.join(shown)}{more}",
        hint=f"leave {NO_FALLBACK} out, or see `qdqtool analyze`",
    )


def _kinds(found: Partitioning) -> dict[str, VerdictKind]:
    units = {unit.core.outputs[0].name: v.kind for unit, v in zip(found.units, found.verdicts, strict=True)}
    return {name: kind for name, kind in units.items() if name}


def _outside(found: Partitioning) -> dict[str, Outside]:
    """What partitions read that is dequantized outside of them."""
    known: dict[str, Outside] = {}
    for partition in found.partitions:
        for node in partition.copies:
            known |= _outside_of(node) if is_dequantize(node) else _outside_quantized(node)
        for value in partition.inputs:
            producer = value.producer()
            if producer is not None and is_dequantize(producer):
                known |= _outside_of(producer)
    return known


def _outside_of(dequantize: ir.Node) -> dict[str, Outside]:
    encoding, name = encoding_of(dequantize), dequantize.outputs[0].name
    reader = next((use for use in dequantize.outputs[0].uses() if not is_quantize(use.node)), None)
    if encoding is None or name is None:
        return {}
    operand = operands_of(reader.node)[reader.idx] if reader is not None else None
    constant = operand is not None and operand.constant and operand.dequantize is dequantize
    integers = np.array(stored_integers(operand)) if constant and operand is not None else None  # onnxruntime's memory
    return {name: Outside(encoding=encoding, integers=integers)}


def _outside_quantized(quantize_linear: ir.Node) -> dict[str, Outside]:
    """The integers that a QuantizeLinear makes of a constant."""
    encoding, name = encoding_of(quantize_linear), quantize_linear.outputs[0].name
    floats = constant_array(quantize_linear.inputs[0])
    if encoding is None or name is None or floats is None:
        return {}
    return {name: Outside(encoding=encoding, integers=quantize(floats, encoding), is_real=False)}


def _restore(part: ir.Model, outside: Mapping[str, Outside]) -> None:
    """Put pairs behind the inputs of ``part`` that were dequantized outside; constants have their integers instead."""
    namer = Namer(part)
    for value in list(part.graph.inputs):
        known = outside.get(value.name or "")
        if known is None or value.is_initializer() or not value.uses():
            continue
        if known.integers is None:
            insert_pairs(part, value, known.encoding, namer)
            continue
        base = value.name or "constant"
        tensor = ir.tensor(known.integers, dtype=known.encoding.dtype)
        stored = new_constant(part.graph, namer, f"{base}_quantized", tensor)
        if not known.is_real:
            value.replace_all_uses_with(stored)
            continue
        scale, zero_point = parameters(part.graph, value, known.encoding, namer, base)
        node = dequantize_node(stored, scale, zero_point, known.encoding, namer, base=base, like=value)
        value.replace_all_uses_with(node.outputs[0])
        put_first(part.graph, [node])
