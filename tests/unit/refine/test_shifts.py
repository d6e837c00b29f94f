"""Every demand on positions, from both sides of its bounds; what an operator sees as its input and output."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from qdq_passes import run_pipeline
from qdq_passes.graph.operators.activations import is_relu6_or_relu1
from qdq_passes.qdq.look.pairs import qdq_pairs
from qdq_passes.refine.look.scale_positions import Positions, factor_input
from qdq_passes.refine.look.shifts import RULES, ShiftLimits, violations
from qdq_passes.refine.refine_positions import RefinePositions

from tests.cases.positioned import places_of, positioned
from tests.cases.small_models import model

CONV = ["conv: y = Conv(x, w, b)"]
HARD_SIGMOID = ["hs: y = HardSigmoid<alpha: float = 0.16666667>(x)"]


def after(graph: ir.Model, pipeline: str) -> dict[str, int]:
    """Positions after ``pipeline``."""
    run_pipeline(graph, pipeline)
    return places_of(graph)


@pytest.mark.parametrize(
    ("x", "y", "moved"),
    [(5, 5, {}), (6, 5, {"x": 5}), (5, 6, {"y": 5}), (-3, 4, {"y": -3})],
)
@pytest.mark.parametrize(
    ("rule", "node"),
    [
        ("align-pool", "pool: y = MaxPool<kernel_shape: ints = [2,2]>(x)"),
        ("align-pool", "pool: y = AveragePool<kernel_shape: ints = [2,2]>(x)"),
        ("align-pool", "pool: y = GlobalAveragePool(x)"),
        ("align-pad", "pad: y = Pad(x, pads)"),
        ("align-slice", "slice: y = Slice(x, starts, ends)"),
    ],
)
def test_alignment_takes_the_smaller(rule: str, node: str, x: int, y: int, moved: dict[str, int]) -> None:
    constants = [
        "int64[8] pads = {0,0,1,1,0,0,1,1}", "int64[4] starts = {0,0,0,0}", "int64[4] ends = {1,1,2,2}",
    ]  # fmt: skip
    graph = positioned([node], {"x": x, "y": y}, outputs=["y"], constants=constants)
    assert [v.rule for v in violations(graph)] == ([rule] if moved else [])
    assert after(graph, rule) == {"x": x, "y": y} | moved


@pytest.mark.parametrize(
    ("places", "wanted"),
    [
        ({"x": 4, "k": 4, "y": 4}, 4),
        ({"x": 7, "k": 5, "y": 6}, 5),
        ({"x": 7, "k": 5, "y": 3}, 3),
        ({"x": -2, "k": 5, "y": 3}, -2),
    ],
)
def test_concat_takes_the_smallest_of_all(places: dict[str, int], wanted: int) -> None:
    """A weight k counts, through the Expand without pair too."""
    nodes = ["e: e = Expand(k, shape)", "cat: y = Concat<axis: int = 1>(x, e)"]
    graph = positioned(nodes, places, outputs=["y"], constants=["int64[4] shape = {1,1,4,4}"])
    assert after(graph, "align-concat") == dict.fromkeys(("x", "k", "y"), wanted)


@pytest.mark.parametrize("op", ["Add", "Sub"])
@pytest.mark.parametrize(
    ("x", "k", "moved"), [(7, 0, {}), (8, 0, {"x": 7}), (0, 7, {}), (0, 8, {"k": 7}), (-5, 4, {"k": 2})]
)
def test_shift_read(op: str, x: int, k: int, moved: dict[str, int]) -> None:
    graph = positioned([f"n: y = {op}(x, k)"], {"x": x, "k": k, "y": 3}, outputs=["y"])
    assert after(graph, "adjust-shift-read") == {"x": x, "k": k, "y": 3} | moved


def test_shift_read_of_a_tensor_with_itself() -> None:
    graph = positioned(["n: y = Add(x, x)"], {"x": 30, "y": 3}, outputs=["y"])
    assert after(graph, "adjust-shift-read") == {"x": 30, "y": 3}


@pytest.mark.parametrize(
    ("op", "x", "k", "y", "wanted"),
    [
        ("Add", 3, 5, 10, 10), ("Add", 3, 5, 11, 10), ("Add", 5, 3, 11, 10),
        ("Add", 3, 5, -22, -22), ("Add", 3, 5, -23, -22),
        ("Mul", 3, 5, 8, 8), ("Mul", 3, 5, 9, 8), ("Mul", 3, 5, -24, -24), ("Mul", 3, 5, -25, -24),
        ("Mul", -3, -2, -5, -5), ("Mul", -3, -2, 0, -5),
        ("Sub", 3, 5, 40, 40),
    ],
)  # fmt: skip
def test_shift_write(op: str, x: int, k: int, y: int, wanted: int) -> None:
    """−7 … 25 from the coarser input of Add, 0 … 32 from the sum of those of Mul; nothing of Sub."""
    graph = positioned([f"n: y = {op}(x, k)"], {"x": x, "k": k, "y": y}, outputs=["y"])
    assert after(graph, "adjust-shift-write") == {"x": x, "k": k, "y": wanted}


@pytest.mark.parametrize(("w", "wanted"), [(0, 0), (-1, 0), (16, 16), (17, 16), (-8, 0), (30, 16)])
@pytest.mark.parametrize("node", ["conv: y = Conv(x, w)", "gemm: y = Gemm(f, m)"])
def test_shift_cut(node: str, w: int, wanted: int) -> None:
    """0 ≤ p_w + p_x − p_y ≤ 16 with p_x = p_y = 4."""
    name = "m" if "Gemm" in node else "w"
    nodes = ["r: f = Reshape(x, one)", node] if name == "m" else [node]
    flat = {"f": 4} if name == "m" else {}
    graph = positioned(
        nodes, {"x": 4, **flat, name: w, "y": 4}, outputs=["y"], constants=["int64[2] one = {16,1}"]
    )  # fmt: skip
    assert after(graph, "adjust-shift-cut") == {"x": 4, **flat, name: wanted, "y": 4}


@pytest.mark.parametrize("node", ["n: y = ConvTranspose(x, w)", "n: y = MatMul(x, w)"])
def test_other_products_are_not_constrained(node: str) -> None:
    graph = positioned([node], {"x": 4, "w": 60, "y": 40}, outputs=["y"])
    assert violations(graph) == []
    assert after(graph, "adjust-shift-cut") == {"x": 4, "w": 60, "y": 40}


@pytest.mark.parametrize(
    ("y", "b", "wanted"),
    [
        (4, -5, -5), (4, -6, -5),  # p_w + p_x − p_b ≤ 15 with p_w + p_x = 10
        (4, 20, 20), (4, 21, 20),  # cut = 6: lowest 6 − 16 = −10
        (-6, 10, 10), (-6, 11, 10),  # cut = 16: lowest 0
        (-9, 10, 10), (-9, 11, 10),  # cut = 19: lowest min(0, 3) = 0
    ],
)  # fmt: skip
def test_shift_bias(y: int, b: int, wanted: int) -> None:
    graph = positioned(CONV, {"x": 4, "w": 6, "b": b, "y": y}, outputs=["y"])
    assert after(graph, "adjust-shift-bias") == {"x": 4, "w": 6, "b": wanted, "y": y}


@pytest.mark.parametrize(("b", "wanted"), [(10, 10), (11, 10), (-5, -5), (-6, -5)])
def test_shift_bias_before_a_leaky_relu(b: int, wanted: int) -> None:
    """Its lowest shift is 0, whatever the cut."""
    nodes = ["conv: t = Conv(x, w, b)", "act: y = LeakyRelu(t)"]
    graph = positioned(nodes, {"x": 4, "w": 6, "b": b, "y": 4}, outputs=["y"])
    assert after(graph, "adjust-shift-bias") == {"x": 4, "w": 6, "b": wanted, "y": 4}


@pytest.mark.parametrize(
    ("x", "y", "new_x", "new_y"),
    [
        (0, 7, 0, 7), (-1, 7, 0, 7), (15, 7, 15, 7), (16, 7, 15, 7),
        (0, 6, 0, 7), (3, 16, 3, 16), (3, 17, 3, 17), (3, 18, 3, 17), (-4, 14, 0, 14), (20, 40, 15, 29),
    ],
)  # fmt: skip
def test_hard_sigmoid(x: int, y: int, new_x: int, new_y: int) -> None:
    """0 ≤ p_x ≤ 15, 7 ≤ p_y; an output of 14 + p_x or more becomes 14 + p_x, with the new p_x."""
    graph = positioned(HARD_SIGMOID, {"x": x, "y": y}, outputs=["y"])
    assert after(graph, "adjust-hard-sigmoid") == {"x": new_x, "y": new_y}


@pytest.mark.parametrize("attributes", ["", "<alpha: float = 0.2>", "<alpha: float = 0.16666667, beta: float = 0.4>"])
def test_other_hard_sigmoids_are_free(attributes: str) -> None:
    graph = positioned([f"hs: y = HardSigmoid{attributes}(x)"], {"x": -4, "y": 2}, outputs=["y"])
    assert after(graph, "adjust-hard-sigmoid") == {"x": -4, "y": 2}


SWISH = ["hs: h = HardSigmoid<alpha: float = 0.16666667>(x)", "mul: y = Mul(x, h)"]
FACTOR = ["hs: f = HardSigmoid<alpha: float = 0.16666667>(x)", "one: h = Mul(f, c)", "mul: y = Mul(h, x)"]


@pytest.mark.parametrize("nodes", [SWISH, FACTOR], ids=["plain", "with the factor"])
@pytest.mark.parametrize(("y", "wanted"), [(11, 11), (12, 11), (-4, -4), (-5, -4)])
@pytest.mark.parametrize("reference", ["false", "true"])
def test_swish(nodes: list[str], y: int, wanted: int, reference: str) -> None:
    """0 ≤ p_x + p_h − p_y ≤ 15 with p_x = 4 and p_h = 7."""
    graph = positioned(nodes, {"x": 4, "h": 7, "y": y}, outputs=["y"], constants=["float c = {1.0001220703125}"])
    assert after(graph, f"adjust-swish{{reference={reference}}}") == {"x": 4, "h": 7, "y": wanted}


@pytest.mark.parametrize(
    ("product", "strict", "reference"),
    [("mul: y = Mul(x, k)", -5, -4), ("mul: y = Mul(h, k)", -5, -5)],
    ids=["x, which a hard sigmoid reads, and another", "the hard sigmoid of x and another"],
)
def test_what_is_no_swish(product: str, strict: int, reference: int) -> None:
    """The reference goes by the name of x alone; neither minds a gate of something else."""
    for mode, wanted in (("false", strict), ("true", reference)):
        graph = positioned([SWISH[0], product], {"x": 4, "k": 7, "h": 7, "y": -5}, outputs=["y"])
        assert after(graph, f"adjust-swish{{reference={mode}}}")["y"] == wanted


@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu", "PRelu", "Clip6", "Clip1"])
@pytest.mark.parametrize("reference", [False, True])
def test_an_output_behind_an_activation(activation: str, reference: bool) -> None:
    op = {"PRelu": "PRelu(t, slope)", "Clip6": "Clip(t, zero, six)", "Clip1": "Clip(t, zero, one)"}.get(activation)
    constants = ["float[1,1,1] slope = {0.25}", "float zero = {0}", "float six = {6}", "float one = {1}"]
    nodes = ["conv: t = Conv(x, w)", f"act: y = {op or activation + '(t)'}"]
    graph = positioned(nodes, {"x": 4, "w": 30, "y": 4}, outputs=["y"], constants=constants)
    conv = next(node for node in graph.graph if node.op_type == "Conv")
    found = Positions(graph, reference=reference).output(conv)
    assert found is not None
    assert found.name == "y_q"


def test_the_reference_sees_relu_like_clips_alone() -> None:
    nodes = ["conv: t = Conv(x, w)", "act: y = Clip(t, low, high)"]
    constants = ["float low = {-1}", "float high = {1}"]
    graph = positioned(nodes, {"x": 4, "w": 30, "y": 4}, outputs=["y"], constants=constants)
    conv, clip = (next(n for n in graph.graph if n.op_type == op) for op in ("Conv", "Clip"))
    assert not is_relu6_or_relu1(clip)
    assert Positions(graph, reference=True).output(conv) is None
    assert Positions(graph).output(conv) is not None


POOL = ["pool: t = AveragePool<kernel_shape: ints = [3,3]>(x)", "one: u = Mul(t, c)"]
C = ["float c = {0.984375}"]


def test_an_output_behind_the_factor_of_a_pool() -> None:
    graph = positioned(POOL, {"x": 5, "u": 4}, outputs=["u"], constants=C)
    assert factor_input(next(n for n in graph.graph if n.op_type == "Mul")) is not None
    assert after(graph, "align-pool{reference=true}") == {"x": 4, "u": 4}


def test_behind_factor_and_activation_the_reference_looks_no_further() -> None:
    """Its factors stand last in its list of nodes, so that the activation before them has been passed."""
    for reference, x in ((True, 5), (False, 4)):
        graph = positioned([*POOL, "act: y = Relu(u)"], {"x": 5, "y": 4}, outputs=["y"], constants=C)
        assert after(graph, f"align-pool{{reference={str(reference).lower()}}}") == {"x": x, "y": 4}


def test_a_product_is_no_factor() -> None:
    """A hard sigmoid whose product with x has a pair, but not the hard sigmoid itself: the product's position is none of its."""
    graph = positioned(SWISH, {"x": 4, "y": 2}, outputs=["y"])
    assert after(graph, "adjust-hard-sigmoid") == {"x": 4, "y": 2}


def test_the_input_of_an_average_behind_a_pad() -> None:
    nodes = ["pad: t = Pad(x, pads)", "pool: y = AveragePool<kernel_shape: ints = [3,3]>(t)"]
    for mode in ("true", "false"):
        constants = ["int64[8] pads = {0,0,1,1,0,0,1,1}"]
        graph = positioned(nodes, {"x": 5, "y": 4}, outputs=["y"], constants=constants)
        assert after(graph, f"align-pool{{reference={mode}}}") == {"x": 4, "y": 4}


def test_the_input_of_an_average_behind_anything_in_the_reference() -> None:
    nodes = ["e: t = Exp(x)", "pool: y = AveragePool<kernel_shape: ints = [3,3]>(t)"]
    for mode, x in (("true", 4), ("false", 5)):
        graph = positioned(nodes, {"x": 5, "y": 4}, outputs=["y"])
        assert after(graph, f"align-pool{{reference={mode}}}") == {"x": x, "y": 4}


def test_the_input_of_a_max_pool_is_its_own() -> None:
    nodes = ["e: t = Pad(x, pads)", "pool: y = MaxPool<kernel_shape: ints = [3,3]>(t)"]
    constants = ["int64[8] pads = {0,0,1,1,0,0,1,1}"]
    graph = positioned(nodes, {"x": 5, "y": 4}, outputs=["y"], constants=constants)
    assert after(graph, "align-pool{reference=true}") == {"x": 5, "y": 4}


def test_rules_are_passes_in_the_order_of_the_reference() -> None:
    assert [rule.name for rule in RULES] == [
        "align-concat", "align-pool", "align-pad", "align-slice", "adjust-shift-read", "adjust-shift-write",
        "adjust-shift-cut", "adjust-shift-bias", "adjust-hard-sigmoid", "adjust-swish",
    ]  # fmt: skip


def test_violations_name_rule_operator_and_numbers() -> None:
    graph = positioned(CONV, {"x": 4, "w": 20, "b": 40, "y": 4}, outputs=["y"])
    found = [(v.rule, v.node.name, v.because) for v in violations(graph)]
    assert found == [
        ("adjust-shift-cut", "conv", "weight + input − output is 20, limits [0, 16]"),
        ("adjust-shift-bias", "conv", "weight + input − bias is -16, limits [0, 15]"),
    ]
    assert places_of(graph) == {"x": 4, "w": 20, "b": 40, "y": 4}, "asking changes nothing"


def test_limits_are_data() -> None:
    graph = positioned(CONV, {"x": 4, "w": 6, "b": 8, "y": 4}, outputs=["y"])
    assert violations(graph) == []
    found = violations(graph, ShiftLimits(cut=(0, 5), bias=1))
    assert [(v.rule, [(half.name, place) for half, place in v.wanted]) for v in found] == [
        ("adjust-shift-cut", [("w_dq", 5)]),
        ("adjust-shift-bias", [("b_dq", 9)]),
    ]


def test_operators_without_pairs_are_none_of_our_business() -> None:
    graph = model(
        "g (float[1,1,4,4] x) => (float[1,1,4,4] y) <float[1,1,1,1] w = {1}> { [c] t = Conv(x, w) [r] y = Add(t, t) }"
    )
    assert violations(graph) == []
    assert list(RefinePositions()(graph)) == []
    assert qdq_pairs(graph) == []
