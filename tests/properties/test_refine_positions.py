"""For all positions: the reference mode does what the table of rules says, written down once more for one graph; strict refinement
leaves nothing outside of the limits, or says what, and has nothing to do again."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from qdq_passes import dump, run_pipeline
from qdq_passes.pipeline.hooks import VerifyEach
from qdq_passes.refine.look.shifts import violations

from tests.cases.positioned import places_of, positioned
from tests.dial import examples
from tests.properties.graphs import DETERMINISTIC

PROFILE = settings(DETERMINISTIC, max_examples=examples(60))

#: A graph that has every rule, and orders in which one row undoes another: `table` restates it.
NODES = [
    "r: u = Reshape(x, shape)",
    "c1: t1 = Conv(x, w1, b1)",
    "a1: v = Relu(t1)",
    "c2: t2 = Conv(v, w2, b1)",
    "a2: l = LeakyRelu(t2)",
    "add: s = Add(v, l)",
    "sub: d = Sub(s, k)",
    "pool: p0 = AveragePool<kernel_shape: ints = [1,1]>(d)",
    "f1: p = Mul(p0, c)",
    "hs: h0 = HardSigmoid<alpha: float = 0.16666667>(p)",
    "f2: h = Mul(h0, c)",
    "mul: z = Mul(p, h)",
    "other: o = Mul(p, k)",
    "cat: q = Concat<axis: int = 2>(z, v)",
    "sl: e = Slice(q, starts, ends)",
    "pad: g = Pad(e, pads)",
    "max: y = MaxPool<kernel_shape: ints = [1,1]>(g)",
]
CONSTANTS = [
    "int64[4] shape = {1,1,2,8}", "int64[4] starts = {0,0,0,0}", "int64[4] ends = {1,1,4,4}",
    "int64[8] pads = {0,0,1,1,0,0,1,1}", "float c = {0.984375}",
]  # fmt: skip
TENSORS = ("x", "w1", "b1", "v", "w2", "l", "s", "k", "d", "p", "h", "z", "o", "q", "e", "g", "y")
positions = st.fixed_dictionaries({name: st.integers(-6, 22) for name in TENSORS})


def graph_at(places: dict[str, int]) -> ir.Model:
    """The graph; u shares the scale of x."""
    return positioned(
        NODES, {**places, "u": places["x"]}, outputs=["u", "y", "o"], scales={"u": "x"}, constants=CONSTANTS
    )


def table(places: dict[str, int]) -> dict[str, int]:
    """The rules of the reference for `NODES`, by name: five rounds at most, a moved output of a Mul asks for no other."""
    p = dict(places)
    changed = False

    def put(name: str, position: int, *, counts: bool = True) -> None:
        nonlocal changed
        changed |= counts and p[name] != position
        p[name] = position

    def align(*names: str) -> None:
        smallest = min(p[name] for name in names)
        for name in names:
            put(name, smallest)

    def clamp(value: int, low: int, high: int) -> int:
        return min(max(value, low), high)

    def read(one: str, other: str) -> None:
        if abs(p[one] - p[other]) > 7:
            small, large = sorted((one, other), key=lambda name: p[name])
            put(large, p[small] + 7)

    def write(value: int, name: str, low: int, high: int, *, counts: bool = True) -> None:
        put(name, value - clamp(value - p[name], low, high), counts=counts)

    def cut(x: str, w: str, y: str) -> None:
        put(w, clamp(p[w] + p[x] - p[y], 0, 16) + p[y] - p[x])

    def bias(x: str, w: str, y: str, b: str, *, is_leaky: bool) -> None:
        total = p[w] + p[x]
        write(total, b, 0 if is_leaky else min(0, total - p[y] - 16), 15)

    steps: list[Callable[[], None]] = [
        lambda: align("z", "v", "q"),
        lambda: align("d", "p"),
        lambda: align("g", "y"),
        lambda: align("e", "g"),
        lambda: align("q", "e"),
        lambda: read("v", "l"),
        lambda: read("s", "k"),
        lambda: write(min(p["v"], p["l"]), "s", -7, 25),
        lambda: write(p["p"] + p["h"], "z", 0, 32, counts=False),
        lambda: write(p["p"] + p["k"], "o", 0, 32, counts=False),
        lambda: cut("x", "w1", "v"),
        lambda: cut("v", "w2", "l"),
        lambda: bias("x", "w1", "v", "b1", is_leaky=False),
        lambda: bias("v", "w2", "l", "b1", is_leaky=True),
    ]
    for _ in range(5):
        changed = False
        for step in steps:
            step()
        new_p, new_h = clamp(p["p"], 0, 15), max(p["h"], 7)
        new_h = new_h if 14 + new_p - new_h > 0 else 14 + new_p
        put("p", new_p)
        put("h", new_h)
        write(p["p"] + p["h"], "z", 0, 15)
        write(p["p"] + p["k"], "o", 0, 15)  # no swish, but its x is what the hard sigmoid reads
        if not changed:
            break
    return p


@PROFILE
@given(positions)
def test_reference_is_the_table(places: dict[str, int]) -> None:
    graph = graph_at(places)
    run_pipeline(graph, "refine-positions{reference=true stored=keep}", hooks=[VerifyEach()])
    wanted = table(places)
    assert places_of(graph) == {**wanted, "u": wanted["x"]}


@PROFILE
@given(positions)
def test_strict_ends_within_the_limits_or_says_so(places: dict[str, int]) -> None:
    graph = graph_at(places)
    report = run_pipeline(graph, "refine-positions", hooks=[VerifyEach()])
    texts = [str(change) for change in report.changes]
    told = {change.where for change in report.changes if change.is_skip}
    assert {violation.node.name for violation in violations(graph)} <= told
    assert not any(word in text for text in texts for word in ("nan", "inf"))
    assert report.modified == (places_of(graph) != {**places, "u": places["x"]}), (
        "a move is told if and only if there is one"
    )
    assume(not told)
    before = dump(graph)
    assert not run_pipeline(graph, "refine-positions").changes
    assert dump(graph) == before


@PROFILE
@given(positions)
def test_one_move_leads_to_the_next(places: dict[str, int]) -> None:
    """What is reported of a tensor starts in the file, ends where it is now, and has no circle."""
    graph = graph_at(places)
    report = run_pipeline(graph, "refine-positions{reference=true stored=keep}")
    paths: dict[str, list[int]] = {}
    for change in report.changes:
        if change.kind == "move":
            old, new = (int(word) for word in change.because.split(" (")[0].removeprefix("position ").split(" → "))
            path = paths.setdefault(change.where, [old])
            assert path[-1] == old
            path.append(new)
    found = places_of(graph)
    for name in TENSORS:
        path = paths.get(name, [places[name]])
        assert (path[0], path[-1]) == (places[name], found[name])
        assert len(set(path)) == len(path)
