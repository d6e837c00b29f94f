"""Which floats are indices in disguise."""

from __future__ import annotations

from qdq_passes.graph.indices import index_nodes
from qdq_passes.graph.uses import in_order

from tests.cases.small_models import model


def found(text: str) -> set[str | None]:
    return {node.name for node in index_nodes(in_order(model(text).graph))}


def test_floats_that_become_indices_again() -> None:
    text = """g (int64[4] i, float[8,2] t) => (float[4,2] y) <float two = {2}> {
      [float] f = Cast<to: int = 1>(i) [half] h = Div(f, two) [index] j = Cast<to: int = 7>(h) [rows] y = Gather(t, j)
    }"""
    assert found(text) == {"float", "half", "index"}


def test_integers_beside_constant_scales_are_data() -> None:
    text = """g (int8[1,2,3,3] x) => (int8[1,2,3,3] y) <float s = {0.5}, int8 z = {0}, int8[2,2,1,1] w = {1, 2, 3, 4}> {
      [conv] y = QLinearConv(x, s, z, w, s, z, s, z)
    }"""
    assert found(text) == set()
