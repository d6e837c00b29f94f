"""Estimates as people ask for them: of a graph, of a language model, of many rows at once."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any

import onnx_ir as ir
from qdq_passes._lazy_dataclass import dataclass
from qdq_passes.errors import QdqError, UnsupportedError, UsageError

from qdqtool.chips.chip import Chip, Measured
from qdqtool.chips.loading import all_known, find_chip
from qdqtool.cost import predicting
from qdqtool.cost.choosing import Choice, profile_for
from qdqtool.cost.counting import counted
from qdqtool.cost.decoder_fit import call_of, chip_of
from qdqtool.cost.decoders import STATIC_CONTEXT, STREAMING, Call
from qdqtool.cost.networks import COEFFICIENTS, NAMES, Amounts, amounts_of, node_ms
from qdqtool.cost.predicting import Prediction, Span
from qdqtool.cost.rows import Row
from qdqtool.cost.shapes import DecoderShape, shape_named
from qdqtool.record.record import NodeRecord, Record, Whole


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A network as far as estimates need it.

    Args:
        name: of the network among the measured ones, or "".
        amounts: what its nodes do in one run of batch 1.
        ops: operator of each node.
        uncounted: nodes whose shapes are not static: they are in no estimate.
    """

    name: str
    amounts: Amounts
    ops: tuple[str, ...]
    uncounted: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: ir.Model, *, name: str = "", batch: int = 1) -> Graph:
        """That of ``model``, which is changed and good for nothing else.

        Args:
            model: its weights are not read.
            name: of the network among the measured ones.
            batch: inputs at once.
        """
        counts, uncounted = counted(model)
        return cls(
            name=name, amounts=amounts_of(counts, batch), ops=tuple(c.op for c in counts), uncounted=tuple(uncounted)
        )


@dataclass(frozen=True, kw_only=True)
class Estimated:
    """A time and what it is made of.

    Args:
        what: of which it is: ``one run``, ``prefill of 128 tokens``.
        choice: the profile that it is from.
        prediction: the time.
        nodes: their times, the slowest first; their intervals are as wide as the run's. Empty of language models.
        notes: what is not in it.
    """

    what: str
    choice: Choice
    prediction: Prediction
    nodes: Sequence[NodeRecord] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def record(self) -> Record:
        """The time of each node, or of each group by its first, and that of a run."""
        span, choice = self.prediction.span, self.choice
        whole = Whole(
            chip=choice.chip.name, stack=choice.profile.stack, us=float(1000 * span.ms),
            low_us=float(1000 * span.low), high_us=float(1000 * span.high), notes=self.notes,
        )  # fmt: skip
        return Record(nodes=tuple(node for node in self.nodes if math.isfinite(node.us or 0.0)), whole=whole)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; milliseconds, four digits."""
        found, profile = self.prediction, self.choice.profile
        return {
            "what": self.what,
            "chip": self.choice.chip.name,
            "stack": profile.stack,
            "precision": self.choice.precision,
            **found.span.to_json(),
            "interval": 0.8,
            "resources": {key: _digits(ms) for key, ms in found.resources.items()},
            "widens": list(found.widens),
            "nearest": None if found.nearest is None else nearest_json(*found.nearest),
            "profile": {
                "rows": profile.rows,
                "date": profile.date,
                "version": profile.version,
                "carried": profile.carried,
            },
            "nodes": [
                {"name": node.name, "op": node.op, "ms": _digits((node.us or 0.0) / 1000), "resource": node.limit}
                for node in self.nodes
            ],
            "notes": list(self.notes),
        }


def nearest_json(place: str, row: Measured) -> dict[str, Any]:
    """A measured row as JSON."""
    told = {"precision": row.precision, "phase": row.phase, "tokens": row.tokens, "context": row.context}
    return {"place": place, "model": row.model, "ms": row.ms, **{key: value for key, value in told.items() if value}}


def _digits(ms: float) -> float:
    return float(f"{ms:.4g}")


def of_graph(choice: Choice, graph: Graph, *, on_cpu: Sequence[str] | None = None, crossings: int = 0) -> Estimated:
    """The time of one run of a network.

    Args:
        choice: chip and profile.
        graph: what it does.
        on_cpu: names of nodes that the NPU refuses; None where nobody judged.
        crossings: partitions that it falls into.
    """
    profile = choice.profile
    chips = all_known() if graph.name else ()
    found = predicting.network(chips, choice.chip, profile, graph.name, graph.amounts)
    assert found is not None
    notes = list(choice.notes)
    if on_cpu:
        found = predicting.fallen_back(found, len(on_cpu))
        notes.append(
            f"{len(on_cpu)} operators on the CPU, {crossings} partitions: published pairs take 0.73 to 2.6 times as long"
        )
    elif on_cpu is None:
        notes.append("every operator is taken to run on the NPU: --target judges that")
    if graph.uncounted:
        notes.append(
            f"not in it: {len(graph.uncounted)} nodes whose shapes are not static, {', '.join(graph.uncounted[:3])}"
        )
    shares = node_ms(profile.fitted.mean, graph.amounts)
    scale = found.span.ms / shares.sum()
    low, high = float(found.span.low / found.span.ms), float(found.span.high / found.span.ms)
    times = [float(1000 * row.sum() * scale) for row in shares]
    nodes = [
        NodeRecord(
            name=name, op=op, us=us, low_us=us * low, high_us=us * high, limit=COEFFICIENTS[NAMES[int(row.argmax())]][0]
        )
        for name, op, us, row in zip(graph.amounts.names, graph.ops, times, shares, strict=False)
    ]  # fmt: skip
    nodes.sort(key=lambda node: (-(node.us or 0.0), node.name))
    return Estimated(what="one run", choice=choice, prediction=found, nodes=nodes, notes=tuple(notes))


def of_decoder(choice: Choice, shape: DecoderShape, call: Call) -> Estimated:
    """The time of one prefill or token of a language model. A runtime that does not stream takes a prompt in chunks."""
    profile = choice.profile
    if call.phase == "prefill":
        what = f"prefill of {call.tokens} tokens"
        calls = 1
        if profile.form != STREAMING.name:
            chunks = -(-call.tokens // call.chunk)
            what += f", {chunks} chunk{'s' * (chunks > 1)} of {call.chunk}"
        if profile.form == STATIC_CONTEXT.name:  # a chunk takes as long however much of it is prompt
            calls, call = chunks, replace(call, tokens=call.chunk)
        else:  # takes the tokens that there are, whatever there is room for
            call = replace(call, context=0)
        found = predicting.decoder(choice.chip, profile, shape, call)
        found = replace(
            found, span=found.span.times(calls), resources={key: ms * calls for key, ms in found.resources.items()}
        )
    else:
        what = f"one token at {call.context} tokens of context"
        found = predicting.decoder(choice.chip, profile, shape, call)
    return Estimated(what=what, choice=choice, prediction=found, notes=choice.notes)


@dataclass(frozen=True, kw_only=True)
class _Read:
    """What is read once for many rows.

    Args:
        find: a chip by its name.
        chips: all of them.
        names: of all networks that were measured.
        graphs: what those do that came up.
    """

    find: Callable[[str], Chip | None]
    chips: Sequence[Chip]
    names: frozenset[str]
    graphs: dict[str, Amounts | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Many rows and how they are answered.

    Args:
        nets: folder of graphs, ``<model>.onnx``; "" without.
        load: reads a graph without weights.
        chip: that answers for all rows; None for that of each row.
        from_specs: whether data sheets will do.
    """

    nets: str
    load: Callable[[str], ir.Model]
    chip: Chip | None = None
    from_specs: bool = False

    def answer(self, rows: Sequence[Row]) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
        """By id ``{value, low, high}`` in the row's unit, and by id why there is none."""
        known = all_known()
        names = predicting.measured_names((*known, self.chip) if self.chip is not None else known)
        read = _Read(find=functools.cache(find_chip), chips=known, names=names)
        found, failed = {}, {}
        for row in rows:
            try:
                found[row.id] = self._one(row, read)
            except QdqError as error:
                failed[row.id] = str(error)
        return found, failed

    def _one(self, row: Row, read: _Read) -> dict[str, float]:
        chip = self.chip or read.find(row.chip) or read.find(row.device) or read.find(chip_of(row))
        if chip is None:
            raise UsageError(f"no chip is called {row.chip or row.device!r}", hint="qdqtool list chips")
        choice = profile_for(chip, row.stack, row.precision, decoder=bool(row.phase), from_specs=self.from_specs)
        if row.phase:
            shape = shape_named(row.model)
            if shape is None:
                raise UsageError(f"no decoder is called {row.model!r}", hint="qdqtool list shapes")
            call = replace(call_of(row), precision=choice.precision)
            if choice.profile.form == STATIC_CONTEXT.name and row.phase == "prefill":
                call = replace(call, chunk=max(call.tokens, 1))
            span = of_decoder(choice, shape, call).prediction.span
            if row.metric == "latency_total":
                span = span.times(max(row.out_tokens, 1))
        else:
            span = self._network(choice, row, read)
        value, ends = row.value_of(span.ms), sorted((row.value_of(span.low), row.value_of(span.high)))
        return {"value": _digits(value), "low": _digits(ends[0]), "high": _digits(ends[1])}

    def _network(self, choice: Choice, row: Row, read: _Read) -> Span:
        part, graphs = f"{row.model}--{row.component}", read.graphs
        if row.model not in graphs:
            path = os.path.join(self.nets, f"{row.model}.onnx") if self.nets else ""
            graphs[row.model] = Graph.of(self.load(path), batch=row.batch).amounts if os.path.isfile(path) else None
        name = part if part in read.names else row.model
        found = predicting.network(read.chips, choice.chip, choice.profile, name, graphs[row.model])
        if found is None:
            raise UnsupportedError(f"nobody measured {row.model}, and there is no graph of it", hint="give --nets DIR")
        return found.span
