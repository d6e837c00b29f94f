"""Gradients against central differences, which the reference evaluator of onnx computes in float64.

Tolerance: the difference of a function with third derivatives of about 1 is off by h²/6 with h = 1e-4, its roundoff is 1e-16 / h; the
gradient is computed in float32, in sums of at most a few hundred terms of about 1: 1e-4 covers the three. The evaluator computes Erf
in float32: there h is 1e-2, which leaves 2e-5 and 1e-5. It cannot do grouped ConvTranspose: onnxruntime does, in float32, with h = 1,
which is exact as the operator is linear in each operand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from qdq_passes.errors import UnsupportedError

from qdqtool.io.models.load import model_of
from qdqtool.runtime.gradients.graph import given, with_gradients
from qdqtool.runtime.session import open_session
from tests.cases.small_models import model

STEP, TOLERANCE = 1e-4, 1e-4


@dataclass
class Case:
    """A node: shapes of what it reads, those with a gradient first; numbers that are constant; attributes."""

    op: str
    shapes: Sequence[tuple[int, ...]]
    constants: Sequence[Any] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    positive: bool = False
    opset: int = 20
    step: float = STEP
    by_onnxruntime: bool = False

    @property
    def id(self) -> str:
        said = "-".join(f"{key}={value}" for key, value in self.attributes.items())
        return f"{self.op}-{'x'.join(map(str, self.shapes[0]))}-{said}".replace(" ", "")


def case(op: str, *shapes: tuple[int, ...], constants: Sequence[Any] = (), **attributes: Any) -> Case:
    return Case(op, shapes, constants, attributes)


X = (2, 3, 4)
IMAGE = (2, 4, 7, 6)
CASES = [
    *(case(op, X) for op in ("Neg", "Abs", "Exp", "Sin", "Cos", "Sigmoid", "Softplus", "Tanh", "Relu", "Identity")),
    *(Case(op, [X], positive=True) for op in ("Sqrt", "Reciprocal", "Log")),
    case("LeakyRelu", X, alpha=0.1), case("Elu", X, alpha=0.7), case("HardSigmoid", X, alpha=0.25), case("HardSwish", X),
    Case("Erf", [X], step=1e-2), Case("Gelu", [X], step=1e-2), case("Gelu", X, approximate="tanh"), case("Clip", X, constants=[-0.5, 0.7]),
    case("PRelu", X, constants=[np.full((3, 1), 0.2)]),
    Case("Pow", [X], constants=[3.0]), Case("Pow", [X], constants=[-0.5], positive=True),
    *(case(op, X, (3, 1)) for op in ("Add", "Sub", "Mul", "Max", "Min")), case("Add", (4,), X), Case("Div", [X, (4,)], positive=True),
    case("Sum", X, (1,), (2, 1, 1)),
    case("MatMul", (2, 3, 4), (4, 5)), case("MatMul", (2, 3, 4), (2, 4, 5)), case("MatMul", (3, 4), (2, 4, 5)),
    case("MatMul", (2, 1, 3, 4), (3, 4, 5)),
    *(
        case("Gemm", (4, 3) if a else (3, 4), (5, 4) if b else (4, 5), (5,), transA=a, transB=b, alpha=0.5, beta=2.0)
        for a in (0, 1) for b in (0, 1)
    ),
    case("Conv", IMAGE, (6, 4, 3, 2), (6,), pads=[1, 0, 1, 1]), case("Conv", IMAGE, (6, 4, 3, 2), strides=[2, 3], pads=[1, 1, 0, 2]),
    case("Conv", IMAGE, (4, 1, 3, 3), group=4, strides=[2, 2]), case("Conv", IMAGE, (6, 2, 3, 3), group=2, dilations=[2, 1]),
    case("Conv", IMAGE, (4, 4, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2]),
    case("Conv", IMAGE, (4, 4, 3, 3), auto_pad="SAME_LOWER", strides=[3, 2]), case("Conv", (2, 4, 9), (6, 4, 4), strides=[2]),
    Case(
        "ConvTranspose", [(2, 4, 3, 4), (4, 3, 3, 2), (6,)], step=1.0, by_onnxruntime=True,
        attributes={"group": 2, "strides": [2, 3], "pads": [1, 0, 1, 1]},
    ),
    case("ConvTranspose", (2, 4, 3, 4), (4, 3, 3, 3), strides=[2, 2], output_padding=[1, 0]),
    *(case(op, X, constants=[np.array([1])], keepdims=k) for op in ("ReduceSum", "ReduceMean") for k in (0, 1)),
    case("ReduceMean", X, constants=[np.array([-1, 0])]), case("ReduceMax", X, constants=[np.array([2])]),
    case("Softmax", X, axis=1), case("LogSoftmax", X), case("LayerNormalization", X, (4,), (4,), axis=-1),
    case("LayerNormalization", X, (3, 4), axis=1), case("InstanceNormalization", IMAGE, constants=[np.arange(1.0, 5), np.arange(4.0)]),
    case("LpNormalization", X, axis=1, p=2), Case("RMSNormalization", [X, (4,)], opset=23), Case("Swish", [X], attributes={"alpha": 1.5}, opset=24),
    case("BatchNormalization", IMAGE, constants=[np.arange(1.0, 5), np.arange(4.0), np.arange(4.0), np.arange(1.0, 5)]),
    case("GlobalAveragePool", IMAGE), case("GlobalMaxPool", IMAGE), case("MaxPool", IMAGE, kernel_shape=[3, 2], strides=[2, 2]),
    case("AveragePool", IMAGE, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
    case("AveragePool", IMAGE, kernel_shape=[3, 2], strides=[2, 3], pads=[1, 1, 0, 1], count_include_pad=1),
    case("AveragePool", IMAGE, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
    case("AveragePool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
    case("Reshape", X, constants=[np.array([4, -1])]), case("Flatten", X, axis=1), case("Transpose", X, perm=[2, 0, 1]),
    case("Transpose", X), case("Unsqueeze", X, constants=[np.array([1])]), case("Squeeze", (2, 1, 3), constants=[np.array([1])]),
    case("Expand", (2, 1, 4), constants=[np.array([2, 2, 3, 4])]), case("Concat", X, (2, 1, 4), axis=1),
    case("Gather", X, constants=[np.array([[2, 0], [2, 1]])], axis=1), case("Tile", X, constants=[np.array([1, 2, 2])]),
    Case("TopK", [X], constants=[np.array([2])], attributes={"axis": 1}, outputs=2), Case("ReduceMean", [X], attributes={"axes": [1]}, opset=13),
    Case(
        "ConvTranspose", [(2, 4, 3, 4), (4, 3, 3, 3)], step=1.0, by_onnxruntime=True, attributes={"strides": [2, 2], "output_shape": [6, 8]},
    ),
    Case(
        "ConvTranspose", [(2, 4, 3, 4), (4, 3, 3, 3)], step=1.0, by_onnxruntime=True,
        attributes={"strides": [2, 2], "auto_pad": "SAME_UPPER", "output_padding": [1, 1]},
    ),
    case("GatherElements", X, constants=[np.array([2, 0, 1, 1] * 4).reshape(2, 2, 4)], axis=1), case("GatherND", X, constants=[np.array([[1, 2], [0, 2], [1, 2]])]),
    case("Slice", X, constants=[np.array([2]), np.array([-4]), np.array([1]), np.array([-2])]),
    case("Pad", X, constants=[np.array([0, 1, 2, 1, 0, 1]), 0.5]), case("Pad", X, constants=[np.array([0, 1, 2, 0, 0, 1])], mode="reflect"),
    Case("Split", [X], constants=[np.array([1, 2])], attributes={"axis": 1}, outputs=2), case("DepthToSpace", IMAGE, blocksize=2),
    case("SpaceToDepth", (1, 2, 4, 6), blocksize=2), case("Where", X, (3, 1)),
    Case("Resize", [IMAGE], constants=[None, np.array([1, 1, 2, 3], np.float32)], attributes={"mode": "nearest"}),
    *(
        Case("Resize", [IMAGE], constants=[None, np.array(scales, np.float32)], attributes=attributes, step=1.0, by_onnxruntime=True)
        for scales, attributes in (
            ([1, 1, 2, 3], {"mode": "linear"}),
            ([1, 1, 0.5, 1.7], {"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
            ([1, 1, 0.5, 1.7], {"mode": "linear", "antialias": 1}),
            ([1, 1, 2, 1.5], {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1}),
        )
    ),
    Case(
        "Resize", [IMAGE], constants=[np.zeros(0, np.float32), np.zeros(0, np.float32), np.array([2, 4, 9, 11])],
        attributes={"mode": "linear"}, opset=13,
    ),
    Case("Resize", [IMAGE], constants=[None, None, np.array([9, 11])], attributes={"mode": "linear", "axes": [2, 3]}),
]  # fmt: skip


def _model(case: Case, dtype: Any, rng: np.random.Generator) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The node between two layers, so that gradients pass through it, and its loss Σ c·y."""
    kind, feeds, names, stored = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), {}, [], []
    for index, shape in enumerate(case.shapes):
        values = rng.uniform(0.5, 2, shape) if case.positive else rng.uniform(-1.5, 1.5, shape)
        feeds[f"x{index}"] = values.astype(dtype)
        names.append(f"x{index}")
    for index, constant in enumerate(case.constants):
        if constant is None:
            names.append("")
            continue
        array = np.asarray(constant)
        is_real = array.dtype == np.float64
        stored.append(onnx.numpy_helper.from_array(array.astype(dtype) if is_real else array, f"k{index}"))
        names.append(f"k{index}")
    if case.op == "Where":
        names.insert(0, "chosen")
        stored.append(onnx.numpy_helper.from_array(rng.random(X) > 0.5, "chosen"))
    outputs = [f"y{index}" for index in range(case.outputs)]
    node = onnx.helper.make_node(case.op, names, outputs, name="node", **case.attributes)
    graph = onnx.helper.make_graph(
        [node], "g", [onnx.helper.make_tensor_value_info(n, kind, v.shape) for n, v in feeds.items()],
        [onnx.helper.make_tensor_value_info(n, kind, None) for n in outputs[: 1 if case.op == "TopK" else None]], stored,
    )  # fmt: skip
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", case.opset)], ir_version=10), feeds


@pytest.mark.parametrize(
    "case",
    [pytest.param(each, id=each.id, marks=[pytest.mark.newest] if each.opset > 23 else []) for each in CASES],
)
def test_against_differences(case: Case) -> None:
    exact, feeds = _model(case, np.float64, np.random.default_rng(3))
    single, _ = _model(case, np.float32, np.random.default_rng(3))
    evaluator, session = ReferenceEvaluator(exact), open_session(model_of(single))

    def run(changed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if case.by_onnxruntime:
            return session.run({name: array.astype(np.float32) for name, array in changed.items()})
        return dict(zip([o.name for o in exact.graph.output], evaluator.run(None, changed), strict=True))

    results = {name: array for name, array in run(feeds).items() if array.dtype.kind == "f"}
    weights = {name: np.random.default_rng(5).uniform(-1, 1, y.shape) for name, y in results.items()}

    def loss(changed: dict[str, np.ndarray]) -> float:
        return float(sum((weights[name] * y).sum() for name, y in run(changed).items() if name in weights))

    small = model_of(single)
    fed = {name: array.astype(np.float32) for name, array in feeds.items()}
    made = with_gradients(small, [fed], {name: given(f"seed_{name}") for name in results}, fed)
    backwards = open_session(made.model)
    fed |= {f"seed_{name}": array.astype(np.float32) for name, array in weights.items()}
    found = backwards.run(fed)
    for name, array in feeds.items():
        gradient = found[made.gradients[name]]
        assert gradient.shape == array.shape
        places = np.random.default_rng(7).choice(array.size, min(array.size, 12), replace=False)
        for place in places:
            step = np.zeros(array.size)
            step[place] = case.step
            step = step.reshape(array.shape)
            wanted = (loss(feeds | {name: array + step}) - loss(feeds | {name: array - step})) / (2 * case.step)
            assert gradient.ravel()[place] == pytest.approx(wanted, rel=TOLERANCE, abs=TOLERANCE)


def test_ties_share_a_gradient() -> None:
    """What several numbers are the largest of is theirs in equal parts."""
    text = "g (float[1,1,4] x) => (float[1,1,1] y, float[1,1,4] z) { y = GlobalMaxPool(x) z = Max(x, x) }"
    x, seed = np.float32([[[1, 3, 3, 2]]]), np.float32([[[6]]])
    made = with_gradients(
        model('<ir_version: 10, opset_import: ["" : 20]>' + text), [{"x": x}], {"y": given("s")}, {"x": x}
    )
    found = open_session(made.model).run({"x": x, "s": seed})
    assert found[made.gradients["x"]].tolist() == [[[0, 3, 3, 0]]]
    made = with_gradients(
        model('<ir_version: 10, opset_import: ["" : 20]>' + text), [{"x": x}], {"z": given("s")}, {"x": x}
    )
    found = open_session(made.model).run({"x": x, "s": x})
    assert found[made.gradients["x"]].tolist() == x.tolist()


BODY = (
    "if_ = If(c) <then_branch = t () => (float[2] a) { a = Neg(x) }, else_branch = e () => (float[2] b) { b = Exp(x) }>"
)


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (BODY + " y = Add(if_, x)", "no gradient of If is known"),
        ("n, m = LayerNormalization(x, k) y = Add(n, m)", "no gradient of its other outputs is known"),
        (
            "h = Cast<to: int = 10>(x) e = Exp(h) f = Cast<to: int = 1>(e) y = Add(f, x)",
            "no gradient in float16 is known",
        ),
        ("y = CumSum(x, i)", "no gradient of CumSum is known"),
    ],
    ids=["body", "other output", "float16", "no rule"],
)
def test_what_has_no_gradient(nodes: str, said: str) -> None:
    """It is named, and nothing of it is left out silently."""
    text = f'<ir_version: 10, opset_import: ["" : 20]> g (float[2] x, bool c) => (float[2] y) <float[2] k = {{1, 2}}, int64 i = {{0}}> {{ {nodes} }}'
    x = np.float32([1, 2])
    with pytest.raises(UnsupportedError, match=said):
        with_gradients(model(text), [{"x": x, "c": np.array(True)}], {"y": given("s")}, {"x": x})


def test_integers_pass_none() -> None:
    """What is rounded to integers and back counts as constant."""
    text = '<ir_version: 10, opset_import: ["" : 20]> g (float[2] x) => (float[2] y) { i = Cast<to: int = 7>(x) a = Abs(i) f = Cast<to: int = 1>(a) y = Add(f, x) }'
    x = np.float32([1.25, -2])
    made = with_gradients(model(text), [{"x": x}], {"y": given("s")}, {"x": x})
    assert open_session(made.model).run({"x": x, "s": x})[made.gradients["x"]].tolist() == x.tolist()


def test_shapes_that_depend_on_the_data() -> None:
    """They are of one sample and not of the next: told, not run into."""
    text = """<ir_version: 10, opset_import: ["" : 20]> g (float[4] x, float[4] w) => (float y) {
      n = NonZero(x) i = Squeeze(n) h = Gather(w, i) y = ReduceSum<keepdims: int = 0>(h) }"""
    w = np.float32([5, 6, 7, 8])
    feeds = [{"x": np.float32([1, 2, 3, 4]), "w": w}, {"x": np.float32([1, 0, 0, 4]), "w": w}]
    with pytest.raises(UnsupportedError, match=r"where shapes depend on the data: \[4\] and \[2\]"):
        with_gradients(model(text), feeds, {"y": given("s")}, {"w": w})
