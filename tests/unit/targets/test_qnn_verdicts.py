"""What `qnn_htp` says of other shapes, ranks and attributes than those that were measured.

What the rows demand is documented: the checks of the provider (onnxruntime-qnn: builders of operators, selection of QDQ groups,
and its tests of what it does not take) and what onnxruntime itself rewrites before it asks a provider."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.helper import make_node as node
from qdq_passes import run_pipeline
from qdq_passes.npu.units.units import units_of
from qdq_passes.npu.units.verdict import VERDICT_KINDS, Verdict

import qdqtool
from qdqtool.targets.loading import load_target
from qdqtool.targets.target import Target
from tests.cases.small_models import model as small_model
from tests.suites.qnn_cases import models
from tests.suites.qnn_operators import Array, Bias, Like, Operator, Raw, Weight

SAMPLES = Path(__file__).parents[3] / "sample_models"
RNG = np.random.default_rng(7)
#: One letter for each scheme of `tests.suites.qnn_cases`, in their order.
LETTERS = {"npu-int": "i", "npu-float": "f", "fallback": "c", "refused": "r"}
#: Schemes without weights: u8, s8, s8sym, u16, s16sym, s8pow2, fp32, fp16. Integers on all types; not on int16; nowhere.
INTEGER, NOT_INT16, CPU, FLOAT = "iiiiiiff", "iiiiciff", "cccccccc", "ffffffff"
#: Schemes with weights: as measured of a Conv of 3x3.
LIKE_CONV3X3 = "iiiiiifiiiiiiiirrrff"


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> Array:
    return (RNG.random(shape) + 0.2).astype(np.float32)


def ints(*values: int) -> Raw:
    return Raw(np.array(values, np.int64))


def number(value: float) -> Array:
    return np.array(value, np.float32)


def operator(
    op_type: str, x: Array, *constants: Any, opset: int = 21, second: Array | None = None, **attributes: Any
) -> Operator:
    """One operator of x, perhaps a second input z, and constants."""
    inputs = {"x": x} if second is None else {"x": x, "z": second}
    names = [f"c{i}" for i in range(len(constants))]
    read = [*inputs, *(name if constant is not None else "" for name, constant in zip(names, constants, strict=True))]
    return Operator(
        name=op_type,
        nodes=[node(op_type, read, ["y"], **attributes)],
        inputs=inputs,
        constants={name: constant for name, constant in zip(names, constants, strict=True) if constant is not None},
        opset=opset,
    )


def layer(op_type: str, x: Array, weight: Array, axis: int, bias: int = 0, **attributes: Any) -> Operator:
    """A layer with a weight, and a bias of so many channels."""
    constants: dict[str, Any] = {"w": Weight(weight, axis)}
    if bias:
        constants["b"] = Bias(normal(bias))
    return Operator(
        name=op_type,
        nodes=[node(op_type, ["x", *constants], ["y"], **attributes)],
        inputs={"x": x},
        constants=constants,
    )


def chain(nodes: list[onnx.NodeProto], x: Array, **constants: Any) -> Operator:
    return Operator(name="chain", nodes=nodes, inputs={"x": x}, constants=constants)


@cache
def qnn_htp() -> Target:
    return load_target("qnn_htp")


def worst(model: onnx.ModelProto) -> Verdict:
    verdicts = [qnn_htp().judge(unit) for unit in units_of(ir.from_proto(model))]
    return max(verdicts, key=lambda verdict: VERDICT_KINDS.index(verdict.kind))


def letters(case: Operator) -> str:
    return "".join(LETTERS[worst(model).kind] for _, model in models(case))


X, V = normal(2, 8, 10, 14), normal(3, 20)
POINTS = (RNG.random((1, 4, 4, 2)) * 2 - 1).astype(np.float32)


@pytest.mark.parametrize(
    ("case", "wanted"),
    [
        (layer("Conv", X, normal(12, 8, 5, 5), 0, 12, pads=[2] * 4), LIKE_CONV3X3),
        (layer("Conv", X, normal(12, 8, 3, 3), 0, 12, strides=[2, 2]), LIKE_CONV3X3),
        (layer("Conv", X, normal(12, 8, 3, 3), 0, 12, dilations=[2, 2]), LIKE_CONV3X3),
        (layer("Conv", normal(1, 4, 6, 6, 6), normal(8, 4, 3, 3, 3), 0, 8), LIKE_CONV3X3),
        (layer("Conv", X, normal(16, 1, 3, 3), 0, 16, group=8), LIKE_CONV3X3),  # not what the backend calls depthwise
        (layer("Conv", normal(1, 1, 8, 8), normal(1, 1, 3, 3), 0, 1), "iiiiiifiiiiriiirrrff"),  # that is
        (layer("ConvTranspose", X, normal(8, 6, 3, 3), 1), "iiiiiiiiiiiiiiirrrff"),
        (layer("ConvTranspose", X, normal(8, 6, 3, 3), 1, 6, dilations=[2, 2]), "c" * 20),
        (layer("Gemm", normal(4, 32), normal(32, 10), 1, 10), "iiiiiifiiiiiiiiiffff"),
        (layer("MatMul", normal(1, 2, 8, 96), normal(96, 40), 1), "iiiiiiiiiiiiiiiicfff"),
        (operator("MatMul", normal(3, 2, 8, 16), second=normal(16, 8)), "iiiiriff"),
    ],
)
def test_layers(case: Operator, wanted: str) -> None:
    assert letters(case) == wanted


@pytest.mark.parametrize(
    ("case", "wanted"),
    [
        (operator("Relu", normal(9)), INTEGER),
        (operator("Relu", normal(1, 2, 3, 4, 5)), INTEGER),
        (operator("Relu", normal(1, 2, 3, 4, 5, 2)), CPU),
        (operator("Softmax", X, axis=1, opset=11), INTEGER),
        (operator("Clip", X, Raw(number(-1))), NOT_INT16),
        (operator("LRN", X, size=5), "iiiiriff"),
        (operator("LRN", X, size=4), CPU),
        (operator("AveragePool", normal(1, 8, 20), kernel_shape=[3]), "iiiiriff"),
        (operator("AveragePool", X, kernel_shape=[3, 3], dilations=[2, 2]), CPU),
        (operator("MaxPool", normal(1, 4, 6, 6, 6), kernel_shape=[2, 2, 2]), CPU),
        (operator("MaxPool", X, kernel_shape=[2, 2], opset=11), FLOAT),
        (operator("MaxPool", X, kernel_shape=[2, 2], opset=22), FLOAT),
        (operator("Pad", X, ints(0, 0, 1, 1, 0, 0, 1, 1), Raw(number(1))), "iiiicifc"),
        (operator("Pad", X, ints(0, 0, 1, 1, 0, 0, 1, 1), mode="edge"), INTEGER),
        (operator("Pad", X, ints(0, 0, 1, 1, 0, 0, 1, 1), mode="wrap"), CPU),
        (operator("Pad", X, ints(0, 0, 12, 1, 0, 0, 1, 1), mode="reflect"), CPU),
        (operator("Gather", X, Raw(np.array(-1, np.int64)), axis=1), INTEGER),
        (operator("ReduceMean", X, axes=[1], opset=13), INTEGER),
        (operator("ReduceProd", X, ints(0)), CPU),
        (operator("ArgMax", normal(1, 2, 3, 4, 5), axis=1), CPU),
        (operator("ArgMin", X, axis=1, select_last_index=1), CPU),
        (operator("CumSum", V, Raw(np.array(1, np.int64)), reverse=1), CPU),
        (operator("LpNormalization", V, axis=-1, p=1), CPU),
        (operator("Selu", V), FLOAT),
        (operator("Mish", V), CPU),
        (operator("GridSample", normal(1, 3, 8, 8), second=POINTS, mode="nearest"), "iiiiriff"),
        (operator("GridSample", normal(1, 3, 8, 8), second=POINTS, mode="cubic"), CPU),
        (operator("RMSNormalization", normal(1, 2, 3, 4, 8), Like(positive(8)), axis=-1, opset=23), CPU),
        (operator("RMSNormalization", normal(2, 4, 8), Like(positive(4, 8)), axis=1, opset=23), CPU),
        (operator("Resize", X, None, Raw(np.array([1, 1, 2, 3], np.float32)), mode="nearest", nearest_mode="ceil",
                  coordinate_transformation_mode="asymmetric"), "cccccccr"),
        (operator("Resize", normal(1, 4, 9), None, Raw(np.array([1, 1, 2], np.float32)), mode="nearest", nearest_mode="floor",
                  coordinate_transformation_mode="asymmetric"), "iiiirifr"),
    ],
)  # fmt: skip
def test_attributes_and_ranks(case: Operator, wanted: str) -> None:
    assert letters(case) == wanted


@pytest.mark.parametrize(
    ("equation", "x", "z", "wanted"),
    [
        ("ij,jk->ik", (4, 5), (5, 6), "iiiciiff"),
        ("b i d, b j d -> b i j", (2, 3, 4), (2, 5, 4), "iiiciiff"),
        ("bchq,bkhc->bkhq", (1, 3, 4, 5), (1, 6, 4, 3), "iiiciiff"),
        ("bhwc,hkc->bhwk", (1, 3, 4, 5), (3, 6, 5), "iiiciiff"),
        ("bhwc,wkc->bhwk", (1, 3, 4, 5), (4, 6, 5), "ccccccff"),
        ("bij,bj->bi", (2, 3, 4), (2, 4), CPU),
        ("bij,bij->b", (2, 3, 4), (2, 3, 4), CPU),
    ],
)
def test_einsum_is_a_product_of_matrices(equation: str, x: tuple[int, ...], z: tuple[int, ...], wanted: str) -> None:
    assert letters(operator("Einsum", normal(*x), second=normal(*z), equation=equation)) == wanted


@pytest.mark.parametrize(
    ("case", "wanted"),
    [
        (operator("Conv", X, Raw(normal(12, 8, 3, 3)), Raw(normal(12))), INTEGER),
        (operator("Gemm", V, Raw(normal(20, 6)), Raw(normal(6))), INTEGER),
        (operator("Gemm", V, Raw(normal(20, 6)), Raw(normal(1, 6))), FLOAT),
        (operator("MatMul", V, Raw(normal(20, 6))), FLOAT),
        (operator("Add", V, Raw(normal(20))), FLOAT),
        (
            operator("BatchNormalization", X, Like(positive(8)), Like(normal(8)), Raw(normal(8)), Raw(positive(8))),
            "iiicciff",
        ),
        (operator("BatchNormalization", X, Like(positive(8)), Raw(normal(8)), Raw(normal(8)), Raw(positive(8))), FLOAT),
    ],
)
def test_floats_that_become_integers(case: Operator, wanted: str) -> None:
    assert letters(case) == wanted


@pytest.mark.parametrize(("other", "wanted"), [(number(-100), INTEGER), (normal(20), FLOAT)])
def test_where_takes_a_float_number(other: Array, wanted: str) -> None:
    flags = RNG.random((3, 20)) > 0.5
    nodes = [node("Where", ["c", "x", "k"], ["y"])]
    assert (
        letters(Operator(name="Where", nodes=nodes, inputs={"c": flags, "x": V}, constants={"k": Raw(other)})) == wanted
    )


GELU = [node("Div", ["x", "root"], ["d"]), node("Erf", ["d"], ["e"]), node("Add", ["e", "one"], ["a"])]
NUMBERS = {"root": Like(number(2**0.5)), "one": Like(number(1)), "half": Like(number(0.5))}


@pytest.mark.parametrize(
    ("rest", "wanted"),
    [
        ([node("Mul", ["x", "a"], ["m"]), node("Mul", ["m", "half"], ["y"])], INTEGER),
        ([node("Mul", ["x", "half"], ["m"]), node("Mul", ["m", "a"], ["y"])], INTEGER),
        ([node("Mul", ["one", "a"], ["m"]), node("Mul", ["m", "half"], ["y"])], CPU),
        ([node("Mul", ["x", "a"], ["m"]), node("Add", ["m", "half"], ["y"])], CPU),
    ],
)
def test_erf_inside_a_gelu(rest: list[onnx.NodeProto], wanted: str) -> None:
    assert letters(chain([*GELU, *rest], V, **NUMBERS)) == wanted


@pytest.mark.parametrize(("batch", "wanted"), [(1, NOT_INT16), (2, CPU)])
def test_six_dimensions_of_which_one_is_1(batch: int, wanted: str) -> None:
    """Pixel shuffle written out: five dimensions remain of one image."""
    nodes = [
        node("Reshape", ["x", "before"], ["r"]),
        node("Transpose", ["r"], ["t"], perm=[0, 1, 4, 2, 5, 3]),
        node("Reshape", ["t", "after"], ["y"]),
    ]
    shapes = {"before": ints(batch, 2, 2, 2, 3, 4), "after": ints(batch, 2, 6, 8)}
    assert letters(chain(nodes, normal(batch, 8, 3, 4), **shapes)) == wanted


def judged(body: str, opset: int = 21) -> list[tuple[str, str]]:
    """(verdict, rule) of the units of a graph that reads xd, u8 behind a pair."""
    constants = "float s = {0.5}, uint8 z = {0}, int64[2] shape = {1, -1}, int64 one = {1}, int64 many = {9}"
    text = f"""<ir_version: 10, opset_import: ["" : {opset}]> g (float[1,2,4,4] x) => (y) <{constants}> {{
      [qx] xq = QuantizeLinear(x, s, z) [dx] xd = DequantizeLinear(xq, s, z) {body} }}"""
    graph = small_model(text)
    run_pipeline(graph, "infer-shapes")
    verdicts = [qnn_htp().judge(unit) for unit in units_of(graph)]
    return [(verdict.kind, verdict.rule) for verdict in verdicts]


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("[m] y = Reshape(xd, shape)", [("npu-int", "movement-before-dequantize")]),
        ("[m] y = Transpose<perm=[0, 2, 3, 1]>(xd)", [("npu-int", "movement-before-dequantize")]),
        ("[m] y = MaxPool<kernel_shape=[2, 2]>(xd)", [("npu-int", "movement-before-dequantize")]),
        ("[m] y = DepthToSpace<blocksize=1>(xd)", [("npu-float", "not-quantized")]),
        (
            "[r] r = Range(one, many, one) [m] y = Reshape(xd, shape)",
            [("npu-int", "constant"), ("npu-int", "movement-before-dequantize")],
        ),
        ("[m] y = Cast<to=11>(xd)", [("fallback", "element-type")]),
        ("[m] y = Erf(xd)", [("fallback", "erf")]),
    ],
)
def test_what_onnxruntime_does_before(body: str, wanted: list[tuple[str, str]]) -> None:
    """A DQ moves behind a movement; what reads constants alone is computed. A type that there is not stays on the CPU."""
    assert judged(body) == wanted


def test_from_opset_23_on_a_dequantize_stays_where_it_is() -> None:
    assert judged("[m] y = Transpose<perm=[0, 2, 3, 1]>(xd)", opset=23) == [("npu-float", "not-quantized")]


@pytest.mark.product(extra=2)
@pytest.mark.parametrize(
    ("sample", "preset"),
    [
        ("detector", "xint8"),
        ("detector", "a8w8"),
        ("mobilenet_block", "xint8"),
        ("vit_block", "a8w8"),
        ("external_data", "a8w8"),
    ],
)
def test_a_sample_that_is_quantized_for_it_stays_on_integers(sample: str, preset: str, tmp_path: Path) -> None:
    """A Resize has integers only at one scale: quantizing gives it the encoding of its input, with any preset. Boxes and scores of a
    detector have no scale in common, so its last Concat stays float."""
    made = tmp_path / "q.onnx"
    qdqtool.quantize(str(SAMPLES / f"{sample}.onnx"), preset=preset, data="random:1", target="qnn_htp", output=made)
    floats = [
        n.op
        for n in qdqtool.analyze(made, target="qnn_htp").nodes
        if n.is_compute and n.placement.verdict == "npu-float"
    ]
    assert set(floats) <= ({"Concat"} if sample == "detector" else set())


@pytest.mark.parametrize(
    ("preset", "operators"), [(None, {"Gemm", "LeakyRelu"}), ("xint8", {"Gemm", "Mul", "Relu", "Add"})]
)
def test_a_leaky_relu_is_quantized_as_the_target_has_it(preset: str | None, operators: set[str]) -> None:
    """No scheme of int8 has it: it is taken apart there."""
    sample = str(SAMPLES / "local_function.onnx")
    found = qdqtool.analyze(
        qdqtool.quantize(sample, data="random:1", preset=preset, target="qnn_htp").model, target="qnn_htp"
    )
    assert {(n.op, n.placement.verdict) for n in found.nodes if n.is_compute} == {(op, "npu-int") for op in operators}


def test_a_leaky_relu_on_int8_is_the_one_thing_that_is_left() -> None:
    """Where another tool has left it so, what `analyze` suggests puts it on the NPU."""
    made = qdqtool.quantize(str(SAMPLES / "local_function.onnx"), data="random:1", target="qnn_htp").model
    run_pipeline(made, "convert-encodings{dtype=int8 kinds=[activation]}")
    found = {n.op: n.placement for n in qdqtool.analyze(made, target="qnn_htp").nodes if n.is_compute}
    assert {op: placement.verdict for op, placement in found.items() if placement.verdict != "npu-int"} == {
        "LeakyRelu": "fallback"
    }
    assert (
        "`qdqtool qdq convert model.onnx -o mended.onnx --dtype uint8 --kinds activation`"
        in found["LeakyRelu"].suggestion
    )
    unsigned = run_pipeline(made, "convert-encodings{dtype=uint8 kinds=[activation]}", copy=True).model
    assert qdqtool.analyze(unsigned, target="qnn_htp").verdict == "npu-int"
