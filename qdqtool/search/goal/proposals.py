"""What to try next, from causes: the record says which tensors cost what and why, and each cause has its mends."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from qdqtool.presets.preset import HARD_SIGMOID
from qdqtool.quantization.plan import Plan
from qdqtool.record.record import Record
from qdqtool.search.goal.trials import Candidate
from qdqtool.search.node_groups import NodeGroup, union

#: Calibration methods to try: those that clip first where rounding costs, those that do not where clipping does; powers of
#: two have their own.
_Methods = tuple[dict[str, object], ...]
_PERCENTILES: _Methods = tuple(
    {"method": "percentile", "method_options": {"percentile": share}} for share in (99.9, 99.99, 99.5)
)
CLIPPING: _Methods = ({"method": "mse"}, *_PERCENTILES, {"method": "entropy"}, {"method": "percentile"})
WHOLE: _Methods = ({"method": "minmax"},)
POW2_CLIPPING: _Methods = ({"method": "pow2-minmse"},)
POW2_WHOLE: _Methods = ({"method": "pow2-nonoverflow"},)
#: Of a cause, the share of the noise from which on its mends are tried.
WORTH = 0.03
#: What gives the same for all that is small, or large.
SATURATING = frozenset({"HardSigmoid", "HardSwish"})
#: What learned rounding does, too.
LEARNED = frozenset({"round_weights", "correct_bias"})


def proposals(
    record: Record,
    plan: Plan,
    said: Mapping[str, object],
    *,
    ops: Collection[str] = (),
    is_spare: bool = False,
) -> list[Candidate]:
    """Options of one mend each that leave everything in 8 bit: the first mend of every cause, the dearest cause first, then the
    second of every cause, and so on, as there may be no budget for all.

    Args:
        record: prices of the plain quantization.
        plan: of it.
        said: what the user says, which stays.
        ops: operator types of the float model.
        is_spare: beside learned rounding what that does, too, is not tried: it is seldom better.
    """
    causes = record.causes
    total = sum(causes.values()) or 1.0
    found: dict[str, tuple[int, float, Candidate]] = {}
    for cause, power in causes.items():
        mends = [
            options
            for options in _mends(cause, plan, bool(said.get("learn_rounding")))
            if _suits(options, record, plan, ops)
        ]
        for rank, options in enumerate(mends):
            is_said = any(name in said for name in options) or ("method" in options and "method_options" in said)
            if power / total < WORTH or is_said:
                continue
            made = Candidate.of(f"{cause}: {power / total:.0%} of the noise", options)
            found.setdefault(made.point.key, (rank, -power, made))
    listed = [made for *_, made in sorted(found.values(), key=lambda each: each[:2])]
    learns = is_spare and any("learn_rounding" in each.options for each in listed)
    return [each for each in listed if not learns or LEARNED.isdisjoint(each.options)]


def _mends(cause: str, plan: Plan, learns: bool) -> Iterator[dict[str, object]]:
    """Those of ``cause``; of a quantization that ``learns`` rounding not what that does, too."""
    recovery = plan.preset.recovery
    learns = learns or bool(recovery.learn_rounding)
    is_rounded = cause in ("weight", "rounding", "bias", "together")
    if cause == "operator":
        yield {"keep_sigmoid": True}
    if is_rounded and not learns:
        yield {"learn_rounding": True}  # it makes up for what the grids of activations before a layer took, too
    if cause == "weight" and not recovery.search_scales:
        yield {"search_scales": True}
    if cause in ("rounding", "clipping") and plan.preset.is_calibrated and not recovery.cut_ranges:
        yield {"cut_ranges": True}
    methods = _methods(cause, plan)
    yield from methods[:1]
    if cause in ("weight", "bias", "together") and not learns and not recovery.correct_bias:
        yield {"correct_bias": True}
    if cause in ("weight", "rounding") and recovery.equalize is None:
        yield {"equalize": "bounds"}
    yield from methods[1:]
    if is_rounded and not learns and not recovery.round_weights:
        yield {"round_weights": True}
    if cause in ("rounding", "clipping") and recovery.smooth is None:
        yield {"smooth": 0.5}


def _methods(cause: str, plan: Plan) -> list[dict[str, object]]:
    """Other calibration methods, the likeliest first."""
    if cause not in ("rounding", "clipping", "boundary", "together") or not plan.preset.is_calibrated:
        return []
    clipping, whole = (POW2_CLIPPING, POW2_WHOLE) if plan.method.startswith("pow2") else (CLIPPING, WHOLE)
    order = (*clipping, *whole) if cause != "clipping" else (*whole, *clipping)
    return [options for options in order if options != {"method": plan.method}]


def _suits(options: Mapping[str, object], record: Record, plan: Plan, ops: Collection[str]) -> bool:
    """Whether a float model of operators ``ops`` has what ``options`` are about: a Sigmoid that ``plan`` replaces, and what that
    costs something; what saturates."""
    if "cut_ranges" in options:
        return not SATURATING.isdisjoint(ops)
    if "keep_sigmoid" not in options:
        return True
    puts = any(p.name() in HARD_SIGMOID for p in (plan.prepare + plan.materialise).passes)
    return (
        puts
        and "Sigmoid" in ops
        and any(node.op == "HardSigmoid" and node.price.get("operator") for node in record.nodes)
    )


def go_together(some: Iterable[str], others: Iterable[str]) -> bool:
    """Whether options of these names say different things: one that is learned does what two others do."""
    some, others = set(some), set(others)
    learned = any("learn_rounding" in a and LEARNED & b for a, b in ((some, others), (others, some)))
    return not some & others and not learned


def dearest_sets(
    record: Record,
    groups: Sequence[NodeGroup],
    more: Iterable[tuple[NodeGroup, ...]],
    *,
    per: Mapping[str, int] | None = None,
) -> tuple[tuple[str, ...], ...]:
    """Nodes that move together, those first whose own tensors and computing cost most at the outputs.

    Args:
        record: prices.
        groups: groups of nodes that may be raised.
        more: sets of them to raise together: what stands behind the last layers.
        per: by the name of a node what raising it takes: then those come first that cost most for so much, and without others.
    """
    costs: dict[str, float] = {}
    for tensor in record.tensors:
        if tensor.node:
            costs[tensor.node] = costs.get(tensor.node, 0.0) + sum(tensor.price.values())
    for node in record.nodes:
        costs[node.name] = costs.get(node.name, 0.0) + sum(node.price.values())
    sets = [union("", each).nodes for each in [*((group,) for group in groups), *more]]
    if per is not None:
        sets = [those for nodes in sets if (those := tuple(name for name in nodes if name in per))]
    priced = {
        nodes: sum(costs.get(name, 0.0) for name in nodes) / (1 if per is None else sum(per[name] for name in nodes))
        for nodes in sets
    }
    found = sorted((cost, nodes) for nodes, cost in priced.items() if cost > 0)
    return tuple(nodes for _, nodes in reversed(found))
