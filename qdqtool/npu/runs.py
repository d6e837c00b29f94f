"""The runs that are compared: of the provider, of the reference, of the QDQ model and of the float model."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from qdq_passes.errors import UsageError
from qdq_passes.npu.partitions.partitions import Partitioning
from qdq_passes.npu.reference.run import run_reference
from qdq_passes.numerics.arithmetic import Arithmetic
from qdq_passes.numerics.arrays import Array
from qdq_passes.pipeline.pipeline import run_pipeline

from qdqtool.npu.output_figures import by_position
from qdqtool.runtime.node_runs import NodeRuns
from qdqtool.runtime.session import Session, open_session

Values = Mapping[str, Array]


@dataclass
class Run:
    """Something that computes the outputs of a model, and how long it took.

    Args:
        name: ``"npu"``, ``"reference"``, ``"qdq"`` or ``"float"``.
        words: what it is.
        call: feed → outputs by name.
        seconds: of each call.
    """

    name: str
    words: str
    call: Callable[[Values], Values]
    seconds: list[float] = field(default_factory=list)

    def __call__(self, feed: Values) -> Values:
        """The outputs for ``feed``; the time is noted."""
        start = time.perf_counter()
        found = self.call(feed)
        self.seconds.append(time.perf_counter() - start)
        return found


def session_run(name: str, words: str, session: Session, inputs: Sequence[str], outputs: Sequence[str]) -> Run:
    """A session whose ends are matched with those of the simulated model: by name, or else by position.

    Raises:
        UsageError: it has more or fewer inputs or outputs.
    """
    to, back = by_position(inputs, session.input_names), by_position(outputs, session.output_names)
    if to is None or back is None:
        raise UsageError(
            f"{words} has the inputs {', '.join(session.input_names)} and the outputs {', '.join(session.output_names)}, the"
            f" model {', '.join(inputs)} and {', '.join(outputs)}",
            hint="give two forms of one model",
        )

    def call(feed: Values) -> Values:
        found = session.run({to[key]: array for key, array in feed.items()})
        return {key: found[other] for key, other in back.items()}

    return Run(name, words, call)


def qdq_run(model: ir.Model, inputs: Sequence[str], outputs: Sequence[str]) -> Run:
    """The QDQ model on onnxruntime's CPU provider without optimization."""
    return session_run("qdq", "the QDQ model in onnxruntime without optimization", open_session(model), inputs, outputs)


def float_run(model: ir.Model, given: ir.Model | None, inputs: Sequence[str], outputs: Sequence[str]) -> Run:
    """The float model: ``given``, or ``model`` (QDQ) without its pairs on activations."""
    if given is not None:
        return session_run("float", "the float model", open_session(given), inputs, outputs)
    made = run_pipeline(model, "restore-relu,remove-qdq{keep-weights=true}", copy=True).model
    words = "the model without its pairs on activations; its weights are the quantized ones"
    return session_run("float", words, open_session(made), inputs, outputs)


def reference_run(model: ir.Model, plan: Partitioning, arithmetic: Arithmetic) -> Run:
    """The numpy reference on ``model``, whose partitioning ``plan`` is; onnxruntime computes the nodes of the CPU."""
    nodes = NodeRuns(model)
    on_npu, verdicts = plan.partition_of, plan.verdict_of

    def in_float(node: ir.Node) -> bool:
        verdict = verdicts.get(node)
        return verdict is not None and verdict.kind == "npu-float"

    def call(feed: Values) -> Values:
        # division by zero and the like are values on the CPU's nodes, as they are in onnxruntime
        with np.errstate(all="ignore"):
            return run_reference(model, feed, arithmetic, on_npu=on_npu.__contains__, fallback=nodes, in_float=in_float)

    return Run("reference", "the numpy reference", call)
