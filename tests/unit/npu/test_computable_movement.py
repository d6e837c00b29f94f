"""Why the simulator does not compute what moves, turns or resizes elements, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from qdq_passes.graph.shapes.inference import infer_shapes
from qdq_passes.npu.program.operators import why_not_computable, why_not_moved
from qdq_passes.npu.units.units import units_of
from qdq_passes.numerics.arithmetic import Arithmetic

from tests.cases.small_models import model
from tests.unit.npu.test_computable import Case

ROTARY = Case("", "", shape="1,2,3,4", opset=23)
CASES = {
    "reduction": Case(
        't = ScatterElements<reduction: string = "add">(xd, pads_nd, xd)',
        "reduces (add); the simulator replaces elements",
    ),
    "no table": replace(
        ROTARY, body="t = RotaryEmbedding(xd, s2, s2, rows)", reason="reads s2 as a float"
    ),
    "angles": replace(
        ROTARY,
        body="cd = DequantizeLinear(m, s, z) t = RotaryEmbedding(xd, cd, cd)",
        reason="has no positions, and angles of other than three axes",
    ),
    "size of a head": replace(
        ROTARY,
        body="cd = DequantizeLinear(tall, s, z) t = RotaryEmbedding<rotary_embedding_dim: int = 4, num_heads: int = 2>(xd, cd, cd, rows)",
        reason="has heads of 4 elements and 1 angles for each of them",
    ),
    "rank": Case(
        "cd = DequantizeLinear(m, s, z) t = RotaryEmbedding(xd, cd, cd, rows)", "turns data of 2 axes", shape="1,4", opset=23
    ),
    "crop": Case(
        't = Resize<mode: string = "linear", coordinate_transformation_mode: string = "tf_crop_and_resize">(xd, twice, twice)',
        "interpolates with the coordinates of tf_crop_and_resize",
    ),
    "computed scales": Case(
        't = Resize<mode: string = "linear">(xd, , x)', "how it resizes is computed", shape="4",
    ),
    "unknown size": Case(
        't = Resize<mode: string = "linear">(xd, , twice)',
        "the sizes of what it resizes are not known; run infer-shapes or fix-shapes first",
        shape="1,1,H,4",
    ),
    "one operand": Case(
        't = Einsum<equation: string = "ij->i">(xd)', "has 1 operands, and a product of matrices has 2", shape="2,2"
    ),
    "sum in one operand": Case(
        't = Einsum<equation: string = "ij,kj->j">(xd, xd)', "adds up its axis i, which one operand alone has", shape="2,2"
    ),
    "scale of the depth": Case(
        'md = DequantizeLinear<axis: int = 0>(m, s2, z2) t = Einsum<equation: string = "ij,jk->ik">(xd, md)',
        "per-axis scales along an axis that is no column of the product",
        shape="3,2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_reasons(name: str) -> None:
    case = CASES[name]
    extra = "rows = Constant<value_ints: ints = [0, 1, 2]>() pads_nd = Constant<value_ints: ints = [0, 1]>() "
    assert why_not_computable(replace(case, body=extra + case.body).unit(), Arithmetic()) == case.reason


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("y = Expand(i, s)", None),
        ("y = ScatterElements(c, i, u)", None),
        ('y = ScatterElements<reduction: string = "max">(c, i, u)', "reduces (max); the simulator replaces elements"),
        ("y = Add(i, i)", "Add has no kernel"),
        ("y = Trilu(c)", "Trilu has no kernel"),
        ("y = Reshape(i, n)", "n, which decides its shape, is computed"),
    ],
)
def test_bare_integers(body: str, reason: str | None) -> None:
    """A cache that the graph reads as integers, and indices: what has no kernel is left to the CPU."""
    made = model(
        '<ir_version: 10, opset_import: ["" : 21]> g (int8[2,3] c, int64[2,1] i, int8[2,1] u, int64[2] n) => (int8[A,B] y) '
        f"<int64[2] s = {{2, 3}}> {{ {body} }}"
    )
    infer_shapes(made)
    (unit,) = units_of(made)
    assert not unit.is_compute
    assert why_not_moved(unit) == reason
