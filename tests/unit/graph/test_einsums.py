"""Einsum as a product of matrices: numpy computes both; what is none says so."""

from __future__ import annotations

import numpy as np
import pytest
from qdq_passes.graph.operators.einsums import Contraction, Turn, contraction

EQUATIONS = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("ij,kj->ki", (2, 3), (4, 3)),
    ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)),
    ("bqhd,bkhd->bhqk", (2, 4, 3, 5), (2, 6, 3, 5)),
    ("bhqk,bkhd->bqhd", (2, 3, 4, 6), (2, 6, 3, 5)),
    ("bsd,dhe->bshe", (2, 3, 4), (4, 5, 6)),
    ("bshe,hed->bsd", (2, 3, 4, 5), (4, 5, 6)),
    ("bcs,nc->bns", (2, 3, 4), (5, 3)),
    ("bi,bi->b", (2, 3), (2, 3)),
    ("i,i->", (4,), (4,)),
    ("i,j->ij", (4,), (5,)),
    ("...ij,...jk->...ik", (2, 3, 4, 5), (2, 3, 5, 6)),
    ("...ij,jk->...ik", (2, 3, 4, 5), (5, 6)),
    ("abc,cd", (2, 3, 4), (4, 5)),
    ("bac,cd", (2, 3, 4), (4, 5)),
    ("bij,bkj -> bik", (2, 3, 4), (2, 5, 4)),
    ("bxyi,bxyj->bij", (2, 3, 4, 5), (2, 3, 4, 6)),
]


def turned(data: np.ndarray, turn: Turn, *, behind: bool = False) -> np.ndarray:
    """What a turn makes of ``data``."""

    def shape() -> list[int]:
        assert turn.shape is not None
        return [data.shape[axis] if size == 0 else size for axis, size in enumerate(turn.shape)]

    if behind and turn.shape is not None:
        data = data.reshape(shape())
    if turn.permutation is not None:
        data = data.transpose(turn.permutation)
    if not behind and turn.shape is not None:
        data = data.reshape(shape())
    return data


@pytest.mark.parametrize(("equation", "left", "right"), EQUATIONS)
def test_the_product_is_the_einsum(equation: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 9, shape) for shape in (left, right))
    form = contraction(equation, left, right)
    assert isinstance(form, Contraction), form
    first, second = turned(a, form.left), turned(b, form.right)
    assert (first.shape, second.shape) == (form.left.sizes, form.right.sizes)
    product = np.matmul(first, second)
    assert product.shape == form.product
    found = turned(product, form.result, behind=True)
    assert found.shape == form.result.sizes
    np.testing.assert_array_equal(found, np.einsum(equation, a, b))


def test_an_axis_of_unknown_size_stays_where_it_is() -> None:
    form = contraction("bsd,dhe->bshe", ("N", None, 4), (4, 5, 6))
    assert isinstance(form, Contraction)
    assert form.left.shape is None
    assert form.result.shape == (0, 0, 5, 6)
    assert form.product == ("N", None, 30)


@pytest.mark.parametrize(
    ("equation", "left", "right", "reason"),
    [
        ("ij,jk,kl->il", (2, 2), (2, 2), "has 3 operands, and a product of matrices has 2"),
        ("ii,ij->j", (2, 2), (2, 2), "takes a diagonal: one label stands for two axes of an operand"),
        ("ij,jk->ijk", (2, 3), (3, 4), None),
        ("ij,kl->kl", (2, 3), (3, 4), "adds up its axis i, which one operand alone has"),
        ("ij,jk->ik", (2, 3), (1, 4), "the sizes of its axis j are 3 and 1, which may differ"),
        ("ij,jk->ik", (2, None), (None, 4), "the sizes of its axis j are None and None, which may differ"),
        ("ij,jk->ik", (2, 3, 4), (4, 5), "has 2 labels for 3 axes"),
        ("ij,jk->iz", (2, 3), (3, 5), "has labels in its result that no operand has"),
        ("...i,...j->...ij", (2, 3), (3, 4), "the sizes of its axis of the ellipsis are 2 and 3, which may differ"),
        (
            "nabc,ncd->nabd", (2, None, None, None), (2, None, 3),
            "the sizes of its axis c are None and None, which may differ",
        ),
        (
            "nabc,ncd->nabd", (2, None, None, "C"), (2, "C", 3),
            "the sizes of axes that are put together are not known; run infer-shapes or fix-shapes first",
        ),
    ],
)  # fmt: skip
def test_reasons(equation: str, left: tuple[int, ...], right: tuple[int, ...], reason: str | None) -> None:
    found = contraction(equation, left, right)
    assert (found if isinstance(found, str) else None) == reason
