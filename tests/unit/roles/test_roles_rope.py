"""The role of rotary embeddings: the rotation in halves and in pairs, of all or a part of each head; never the angles."""

from __future__ import annotations

import pytest

from tests.cases.small_models import FUSED, names_of


def rope(body: str, header: str = "", role: str = "rope") -> str:
    return names_of(
        f"""{header}
        g (float[1,2,4,8] x, float[1,1,4,8] c, float[1,1,4,8] s, int64[1,4] at, float[1,4,1] places) => (float[1,2,4,8] y)
        <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] four = {{4}}, int64[1] eight = {{8}}, int64[1] last = {{-1}}, int64[1] axis = {{3}}, int64[2] halves = {{4,4}}, float minus = {{-1}},
         int64[4] all = {{1,2,4,8}}, int64[5] pairs = {{1,2,4,4,2}}, int64 first = {{0}}, int64 second = {{1}}, float[1,8] freq, float[16,8] table, float scale = {{0.5}}, int8 n = {{0}}, float[8,8] w>
        {{ {body} }}""",
        role,
    )


HALVES = "[lo] a = Slice(x, zero, four, axis)  [hi] b = Slice(x, four, eight, axis)"
ROTATE = f"{HALVES}  [neg] nb = Neg(b)  [cat] h = Concat <axis = -1> (nb, a)  [xc] p = Mul(x, c)  [hs] q = Mul(h, s)  [add] y = Add(p, q)"


@pytest.mark.parametrize(
    ("body", "hit"),
    [
        (ROTATE, "lo hi neg cat xc hs add"),
        (ROTATE.replace("Neg(b)", "Mul(b, minus)"), "lo hi neg cat xc hs add"),
        (ROTATE.replace(HALVES, "[cut] a, b = Split <axis = -1> (x, halves)"), "cut neg cat xc hs add"),
        (ROTATE.replace("Mul(x, c)", "Mul(c, x)").replace("Add(p, q)", "Add(q, p)"), "lo hi neg cat xc hs add"),
        (
            "[ev] a = Slice(x, zero, eight, axis, two)  [od] b = Slice(x, one, eight, axis, two)  [neg] nb = Neg(b)  [u0] ub = Unsqueeze(nb, last)  [u1] ua = Unsqueeze(a, last)"
            "  [cat] h0 = Concat <axis = -1> (ub, ua)  [flat] h = Reshape(h0, all)  [xc] p = Mul(x, c)  [hs] q = Mul(h, s)  [add] y = Add(p, q)",
            "ev od neg u0 u1 cat flat xc hs add",
        ),
        (
            f"{HALVES}  [ac] ac = Mul(a, c)  [bs] bs = Mul(b, s)  [re] re = Sub(ac, bs)  [as] as_ = Mul(a, s)  [bc] bc = Mul(b, c)  [im] im = Add(as_, bc)  [cat] y = Concat <axis = -1> (re, im)",
            "lo hi ac bs re as bc im cat",
        ),
        (
            "[r0] xp = Reshape(x, pairs)  [g0] a = Gather <axis = 4> (xp, first)  [g1] b = Gather <axis = 4> (xp, second)  [ac] ac = Mul(a, c)  [bs] bs = Mul(b, s)  [re] re = Sub(ac, bs)"
            "  [bc] bc = Mul(b, c)  [as] as_ = Mul(a, s)  [im] im = Add(bc, as_)  [u0] ur = Unsqueeze(re, last)  [u1] ui = Unsqueeze(im, last)  [cat] st = Concat <axis = -1> (ur, ui)  [flat] y = Reshape(st, all)",
            "g0 g1 ac bs re bc as im u0 u1 cat flat",
        ),
        (
            "[rot] r = Slice(x, zero, four, axis)  [pass] k = Slice(x, four, eight, axis)  [lo] a = Slice(r, zero, two, axis)  [hi] b = Slice(r, two, four, axis)  [neg] nb = Neg(b)"
            "  [cat] h = Concat <axis = -1> (nb, a)  [xc] p = Mul(r, c)  [hs] q = Mul(h, s)  [add] t = Add(p, q)  [join] y = Concat <axis = -1> (t, k)",
            "rot pass lo hi neg cat xc hs add join",
        ),
        (
            "[q0] i0 = QuantizeLinear(x, scale, n)  [d0] x0 = DequantizeLinear(i0, scale, n)  [d1] x1 = DequantizeLinear(i0, scale, n)  [lo] a = Slice(x0, zero, four, axis)  [hi] b = Slice(x0, four, eight, axis)"
            "  [neg] nb = Neg(b)  [q1] i1 = QuantizeLinear(nb, scale, n)  [d2] nd = DequantizeLinear(i1, scale, n)  [cat] h = Concat <axis = -1> (nd, a)  [xc] p = Mul(x1, c)  [hs] q = Mul(h, s)  [add] y = Add(p, q)",
            "lo hi neg cat xc hs add",
        ),
    ],
    ids=["halves", "minus-one", "split", "swapped", "every-two", "pairs", "pairs-interleaved", "partial", "qdq"],
)  # fmt: skip
def test_rotations(body: str, hit: str) -> None:
    assert rope(body) == hit


def test_the_angles_are_not_part_of_it() -> None:
    angles = "[outer] f = MatMul(places, freq)  [cos] c0 = Cos(f)  [sin] s0 = Sin(f)  [uc] c1 = Unsqueeze(c0, one)  [us] s1 = Unsqueeze(s0, one)"
    body = ROTATE.replace("Mul(x, c)", "Mul(x, c1)").replace("Mul(h, s)", "Mul(h, s1)")
    assert rope(f"{angles} {body}") == "lo hi neg cat xc hs add"


def test_a_table_of_angles_is_no_embedding() -> None:
    look = "[look] t = Gather(table, at)  [u] t1 = Unsqueeze(t, one)"
    body = ROTATE.replace("Mul(x, c)", "Mul(x, t1)")
    assert rope(f"{look} {body}") == "lo hi neg cat xc hs add"
    assert rope(f"{look} {body}", role="embedding") == ""
    assert (
        rope("[look] t = Gather(table, at)  [u] t1 = Unsqueeze(t, one)  [add] y = Add(x, t1)", role="embedding")
        == "look"
    )


@pytest.mark.parametrize(
    "body",
    [
        ROTATE.replace("Neg(b)", "Relu(b)"),
        ROTATE.replace("Slice(x, four", "Slice(c, four"),
        ROTATE.replace("Mul(x, c)", "Mul(s, c)"),
        f"{HALVES}  [neg] nb = Neg(b)  [cat] y = Concat <axis = -1> (nb, a)",
        f"{HALVES}  [m] m = MatMul(x, w)  [o] o = Sigmoid(m)  [ac] ac = Mul(a, o)  [bs] bs = Mul(b, s)  [re] re = Sub(ac, bs)  [as] as_ = Mul(a, s)  [bc] bc = Mul(b, o)  [im] im = Add(as_, bc)  [cat] y = Concat <axis = -1> (re, im)",
        f"{HALVES}  [cat] y = Concat <axis = -1> (b, a)",
    ],
    ids=["no-negative", "two-sources", "other-factor", "no-product", "complex-mask", "swap"],
)  # fmt: skip
def test_none(body: str) -> None:
    assert rope(body) == ""


@pytest.mark.parametrize("node", ["RotaryEmbedding(x, s2, s2)", "com.microsoft.RotaryEmbedding(x, at, s2, s2)"])
def test_one_operator(node: str) -> None:
    text = f"""{FUSED}
    g (float[1,2,4,8] x, float[1,4,4] s2, int64[1,4] at) => (float[1,2,4,8] y) {{ [r] y = {node} }}"""
    assert names_of(text, "rope") == "r"
