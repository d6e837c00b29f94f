"""The time of a prefill and of a token of language models: one form for each way in which a runtime runs a decoder.

A form is a list of `Term`s: log ms = log Σ over groups of (Σ over a group's terms of ms³)^⅓. Terms of one group overlap (the
slower one counts most), groups follow each other. A term's ms is its ``work`` times e to the sum of its coefficients: all
terms are positive and no work shrinks with tokens, context, layers or bits of weights, so neither does the time."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from qdq_passes._lazy_dataclass import dataclass

from qdqtool.cost.fitting import Array
from qdqtool.cost.shapes import DecoderShape

Resource = Literal["mac", "weights", "cache", "dispatch", "cpu"]

#: Terms of one group overlap as a p-norm of this p.
OVERLAP = 3.0
#: Cores of an NPU that is an array of cores: a head is one core's work.
CORES = 32
#: Chunks in which the gaps of a pipeline of chunks shrink by e: of 0.5 to 5 and other laws, what met the public rows best.
GAPS = 1.5
#: Elements of 16 bits that fit into the 8 MB beside a Hexagon's matrix unit.
TIGHTLY_COUPLED = 4 * 2**20


@dataclass(frozen=True, kw_only=True)
class Call:
    """One prefill, or one token of a decode.

    Args:
        phase: of the two.
        tokens: of the prefill's prompt (of a static chunk where the graph is static); 1 in a decode.
        context: tokens in the cache: decode, and what a static graph was compiled for.
        precision: as published: ``w4``, ``w4a16``, ``w8a8``.
        chunk: tokens that a prefill takes at once where the runtime cuts it.
        dataset: that the time is the mean over, with the range of lengths, ``2wiki 2-4``; "" where the length is known.
        length_sd: standard deviation of the logarithm of their mean length.
    """

    phase: Literal["prefill", "decode"]
    tokens: int = 1
    context: int = 0
    precision: str = "w4a16"
    chunk: int = 256
    dataset: str = ""
    length_sd: float = 0.0

    @property
    def lengths(self) -> str:
        """Calls of one name err alike where the mean length is not known; "" of one length."""
        return f"{self.dataset} {self.phase}" if self.dataset else ""


@dataclass(frozen=True, kw_only=True)
class Coefficient:
    """What one unit of work takes.

    Args:
        name: what it is called.
        ms: milliseconds of a unit before a row is seen; of a factor, the factor.
        sd: how unsure that is, in logarithms.
        chip: how far chips lie from each other.
        model: how far models lie from each other, because of what the form does not know.
        unit: of the work.
    """

    name: str
    ms: float
    sd: float
    chip: float
    model: float
    unit: str


@dataclass(frozen=True)
class Term:
    """Work of one call.

    Args:
        group: terms of the same one overlap.
        resource: what is busy.
        work: in the unit of the first coefficient.
        coefficients: names of those that its ms is the product of.
    """

    group: str
    resource: Resource
    work: float
    coefficients: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Form:
    """How one kind of runtime runs a decoder.

    Args:
        name: of the form.
        stacks: runtimes that it is the form of, as rows name them.
        coefficients: in the order of ``theta``, which holds their logarithms.
        terms: of a call.
    """

    name: str
    stacks: tuple[str, ...]
    coefficients: tuple[Coefficient, ...]
    terms: Callable[[DecoderShape, Call], list[Term]]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.coefficients)


@dataclass(frozen=True)
class Design:
    """The terms of many calls as arrays, the shorter lists filled up.

    Args:
        work: logarithms [calls, terms]; -inf where a call has no more terms.
        uses: 1 where the term takes the coefficient [calls, terms, coefficients].
        groups: 1 where the term is of the group [calls, terms, groups].
    """

    work: Array
    uses: Array
    groups: Array

    @classmethod
    def of(cls, form: Form, calls: Sequence[tuple[DecoderShape, Call]]) -> Design:
        lists = [[t for t in form.terms(shape, call) if t.work > 0] for shape, call in calls]
        longest = max(len(terms) for terms in lists)
        work = np.full((len(lists), longest), -np.inf)
        uses = np.zeros((len(lists), longest, len(form.coefficients)))
        groups = np.zeros((len(lists), longest, longest))
        for row, terms in enumerate(lists):
            names = list(dict.fromkeys(t.group for t in terms))
            for column, term in enumerate(terms):
                work[row, column] = math.log(term.work)
                groups[row, column, names.index(term.group)] = 1
                uses[row, column, [form.names.index(name) for name in term.coefficients]] = 1
        return cls(work, uses, groups)

    def ms(self, theta: Array) -> Array:
        """Milliseconds of each term [calls, terms] with what overlaps taken out: their sum is the call's.

        Args:
            theta: logarithms of the coefficients [coefficients], or of each call [calls, coefficients].
        """
        theta = np.broadcast_to(theta, (len(self.work), self.uses.shape[2]))
        powers = np.exp(OVERLAP * (self.work + np.einsum("rtn,rn->rt", self.uses, theta)))
        sums = np.einsum("rtg,rt->rg", self.groups, powers)
        scale = np.where(sums > 0, sums, 1.0) ** (1 / OVERLAP - 1)
        ms: Array = powers * np.einsum("rtg,rg->rt", self.groups, scale)
        return ms

    def log_ms(self, theta: Array) -> tuple[Array, Array]:
        """Log milliseconds [calls] and their derivatives [calls, coefficients]: a coefficient's is its share of the time."""
        parts = self.ms(theta)
        total = parts.sum(axis=1)
        return np.log(total), np.einsum("rt,rtn->rn", parts / total[:, None], self.uses)


def log_ms(form: Form, theta: Array, shape: DecoderShape, call: Call) -> tuple[float, Array]:
    """Log milliseconds of a call, and their derivatives [coefficients]."""
    times, slopes = Design.of(form, [(shape, call)]).log_ms(theta)
    return float(times[0]), slopes[0]


def breakdown(form: Form, theta: Array, shape: DecoderShape, call: Call) -> dict[Resource, float]:
    """Milliseconds by what is busy; their sum is the call's time."""
    parts = Design.of(form, [(shape, call)]).ms(theta)[0]
    found: dict[Resource, float] = {}
    for term, ms in zip([t for t in form.terms(shape, call) if t.work > 0], parts, strict=True):
        found[term.resource] = found.get(term.resource, 0.0) + float(ms)
    return found


def weight_bits(precision: str) -> int:
    """Bits of a weight: ``w4a16`` → 4, ``w8a8 (llm.npu)`` → 8; 16 where none are told."""
    found = re.search(r"w(?:eights?)?(\d+)|q(\d+)_|int(\d+)", precision.lower())
    return int(next(g for g in found.groups() if g)) if found else 16


def static_context(shape: DecoderShape, call: Call) -> list[Term]:
    """One chunk of ``tokens``, or one token, against the whole context that the graph was compiled for, full or not."""
    g, attended = 1e9, shape.attended(max(call.context, call.tokens))
    bits = weight_bits(call.precision)
    factors = ("pace",) if re.search(r"a\d", call.precision) else ("pace", "float")
    size = (
        shape.layers * shape.layer_weights * bits / 8
        + shape.head_weights * max(bits, 16 if "float" in factors else 8) / 8
    )
    spilled = shape.layers * max(0, call.tokens * shape.ffn - TIGHTLY_COUPLED)
    return [
        Term("products", "mac", shape.weights * call.tokens / g, ("mac", *factors)),
        Term("products", "weights", size / g, ("weights", *factors)),
        Term("cache", "cache", attended * shape.cache_per_token / g, ("cache", *factors)),
        Term("scores", "cache", attended * shape.heads * call.tokens / g, ("scores", *factors)),
        Term("spilled", "cache", spilled / g, ("spilled", *factors)),
        Term("layers", "dispatch", shape.layers, ("layer", *factors)),
    ]


def streaming(shape: DecoderShape, call: Call) -> list[Term]:
    """Weights stream past an array of cores; attention is one core a head, over the tokens there are."""
    g, size = 1e9, weight_bits(call.precision) / 8
    if call.phase == "decode":
        attended = shape.attended(call.context)
        return [
            Term("weights", "weights", shape.weights * size / g, ("weights",)),
            Term("layers", "dispatch", shape.layers, ("layer",)),
            Term("cache", "cache", attended * shape.cache_per_token * 2 / g, ("cache",)),
            Term("heads", "cache", attended * shape.head_dim * math.ceil(shape.heads / CORES) / g, ("heads",)),
        ]
    return [
        Term("mac", "mac", shape.layers * shape.layer_weights * call.tokens / g, ("mac",)),
        Term("vectors", "mac", shape.layers * shape.hidden * call.tokens / g, ("vectors",)),
        Term("scores", "cache", shape.attended_pairs(call.tokens) * shape.heads * shape.head_dim / g, ("scores",)),
        Term("load", "weights", shape.weights * size / g, ("load",)),
        Term("start", "dispatch", 1, ("start",)),
    ]


def pipelined_linear(shape: DecoderShape, call: Call) -> list[Term]:
    """Linear layers on the NPU beside float attention and quantization on the CPU, in chunks that fill each other's gaps: of the
    n-th chunk's serial time e^(-n / `GAPS`) stays. A decode is the CPU's."""
    g = 1e9
    linear = shape.layers * shape.layer_weights
    if call.phase == "decode":
        return [
            Term("weights", "cpu", linear / g, ("decode",)),
            Term("head", "cpu", shape.head_weights / g, ("decode head",)),
            Term("cache", "cpu", shape.attended(call.context) * shape.cache_per_token * 2 / g, ("decode",)),
            Term("layers", "cpu", shape.layers, ("decode layer",)),
        ]
    chunks = call.tokens / call.chunk
    filled = call.chunk * GAPS * -math.expm1(-chunks / GAPS)
    pairs = shape.attended_pairs(call.tokens) * shape.heads * shape.head_dim
    return [
        Term("linear", "mac", linear * call.tokens / g, ("mac",)),
        Term("linear", "cpu", pairs / g, ("scores",)),
        Term("gaps", "cpu", linear * filled / g, ("gaps",)),
        Term("vectors", "cpu", shape.layers * (3 * shape.hidden + shape.ffn) * filled / g, ("vectors",)),
        Term("layers", "dispatch", shape.layers * math.ceil(chunks), ("layer",)),
    ]


def _coefficients(*rows: tuple[str, float, float, float, float, str]) -> tuple[Coefficient, ...]:
    return tuple(Coefficient(name=n, ms=m, sd=s, chip=c, model=d, unit=u) for n, m, s, c, d, u in rows)


#: Priors: rates of products and of DRAM from what such machines can do (a Hexagon of these years makes 5 to 10 T products a
#: second, DRAM moves 40 to 80 GB/s); scores, spilled, vectors, layer, gaps and head were set with the public rows in view, where
#: few rows tell them apart. name, ms a unit, sd, between chips, between models, unit.
STATIC_CONTEXT = Form(
    name="static-context",
    stacks=("genie", "qnn_context_binary"),
    coefficients=_coefficients(
        ("mac", 0.1, 0.7, 0.2, 0.15, "GMAC"),
        ("weights", 14.0, 0.4, 0.15, 0.12, "GB"),
        ("cache", 40.0, 0.7, 0.15, 0.15, "G elements"),
        ("scores", 60.0, 0.7, 0.15, 0.2, "G scores"),
        ("spilled", 2000.0, 0.7, 0.1, 0.15, "G elements"),
        ("layer", 0.2, 1.0, 0.2, 0.2, "layer"),
        ("float", 2.0, 0.5, 0.1, 0.15, "factor"),
        ("pace", 1.0, 0.01, 0.3, 0.01, "factor"),
    ),
    terms=static_context,
)
STREAMING = Form(
    name="streaming",
    stacks=("FastFlowLM",),
    coefficients=_coefficients(
        ("weights", 20.0, 0.5, 0.3, 0.08, "GB"),
        ("layer", 0.1, 1.0, 0.3, 0.2, "layer"),
        ("cache", 3.0, 1.0, 0.3, 0.2, "GB"),
        ("heads", 300.0, 1.0, 0.3, 0.2, "G elements of a core"),
        ("mac", 0.25, 0.5, 0.3, 0.08, "GMAC"),
        ("vectors", 1000.0, 1.0, 0.3, 0.2, "G elements"),
        ("scores", 0.5, 0.7, 0.3, 0.1, "G elements"),
        ("load", 160.0, 0.7, 0.3, 0.15, "GB"),
        ("start", 150.0, 1.0, 0.3, 0.2, "prefill"),
    ),
    terms=streaming,
)
PIPELINED_LINEAR = Form(
    name="pipelined-linear",
    stacks=("llm.npu",),
    coefficients=_coefficients(
        ("mac", 0.2, 0.5, 0.2, 0.1, "GMAC"),
        ("scores", 0.05, 0.7, 0.2, 0.1, "G elements"),
        ("gaps", 0.4, 0.7, 0.2, 0.15, "GMAC"),
        ("vectors", 7000.0, 0.7, 0.2, 0.15, "G elements"),
        ("layer", 1.5, 0.7, 0.2, 0.1, "layer of a chunk"),
        ("decode", 20.0, 0.5, 0.2, 0.1, "GB"),
        ("decode head", 50.0, 0.5, 0.2, 0.1, "G weights"),
        ("decode layer", 1.0, 1.0, 0.2, 0.1, "layer"),
    ),
    terms=pipelined_linear,
)
FORMS = (STATIC_CONTEXT, STREAMING, PIPELINED_LINEAR)


def form_of(stack: str) -> Form | None:
    """The form of a runtime, or None."""
    return next((form for form in FORMS if stack in form.stacks), None)
