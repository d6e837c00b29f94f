"""The role of norms: one operator, or spelt out in every way that exporters do."""

from __future__ import annotations

import pytest

from tests.cases.small_models import FUSED, names_of


def norm(body: str, header: str = "") -> str:
    return names_of(
        f"""{header}
        g (float[2,4,8] x, float[2,1,8] live) => (float[2,4,8] y)
        <float two = {{2}}, float half = {{0.5}}, float less = {{-0.5}}, float one = {{1}}, float eps = {{0.001}}, int64[1] last = {{-1}}, int64[3] shape = {{2,4,8}}, float[8,8] w,
         float[8] gamma, float[8] beta, float[1,4,8] places, int8[8] gamma_quantized, float s = {{0.5}}, int8 z = {{0}}>
        {{ {body} }}""",
        "norm",
    )


#: μ and the mean square of x − μ.
CENTRED = "[mu] m = ReduceMean(x, last)  [sub] c = Sub(x, m)  [sq] q = Pow(c, two)  [var] v = ReduceMean(q, last)  [eps] e = Add(v, eps)  [root] r = Sqrt(e)"
SQUARE = "[sq] q = Pow(x, two)  [mean] v = ReduceMean(q, last)  [eps] e = Add(v, eps)  [root] r = Sqrt(e)"


@pytest.mark.parametrize(
    ("body", "hit"),
    [
        (f"{CENTRED}  [div] n = Div(c, r)  [mul] g = Mul(n, gamma)  [add] y = Add(g, beta)", "mu sub sq var eps root div mul add"),
        (f"{CENTRED}  [div] n = Div(c, r)  [o] y = Relu(n)", "mu sub sq var eps root div"),
        (f"{CENTRED}  [sub2] c2 = Sub(x, m)  [div] n = Div(c2, r)  [mul] y = Mul(n, gamma)", "mu sub sq var eps root sub2 div mul"),
        (f"{CENTRED}  [mu2] m2 = ReduceMean(x, last)  [sub2] c2 = Sub(x, m2)  [div] y = Div(c2, r)", "mu sub sq var eps root mu2 sub2 div"),
        (f"{CENTRED.replace('Pow(c, two)', 'Mul(c, c)')}  [inv] i = Reciprocal(r)  [div] n = Mul(c, i)  [mul] y = Mul(gamma, n)", "mu sub sq var eps root inv div mul"),
        (
            f"{CENTRED.replace('Pow(c, two)', 'Mul(c, c)')}  [inv] i = Reciprocal(r)  [k] k = Mul(i, gamma)  [xk] a = Mul(x, k)  [mk] b = Mul(m, k)  [shift] d = Sub(beta, b)  [sum] y = Add(a, d)",
            "mu sub sq var eps root inv k xk mk shift sum",
        ),
        (
            "[mu] m = ReduceMean(x, last)  [sq] q = Mul(x, x)  [ms] v = ReduceMean(q, last)  [mm] n = Mul(m, m)  [var] u = Sub(v, n)  [eps] e = Add(u, eps)  [root] r = Sqrt(e)  [sub] c = Sub(x, m)  [div] y = Div(c, r)",
            "mu sq ms mm var eps root sub div",
        ),
        (f"{SQUARE}  [inv] i = Reciprocal(r)  [mul] n = Mul(x, i)  [gam] y = Mul(gamma, n)", "sq mean eps root inv mul gam"),
        (f"{SQUARE}  [inv] i = Div(one, r)  [mul] n = Mul(x, i)  [cast] c = Cast <to = 1> (n)  [gam] y = Mul(gamma, c)", "sq mean eps root inv mul cast gam"),
        (f"[c0] d = Cast <to = 1> (x)  {SQUARE.replace('(x,', '(d,')}  [div] y = Div(d, r)", "sq mean eps root div"),
        (f"{SQUARE.replace('Sqrt(e)', 'Pow(e, less)')}  [mul] y = Mul(x, r)", "sq mean eps root mul"),
        (f"{SQUARE.replace('Sqrt(e)', 'Pow(e, half)')}  [div] y = Div(x, r)", "sq mean eps root div"),
        (f"{SQUARE}  [div] n = Div(x, r)  [plus] h = Add(gamma, one)  [gam] y = Mul(n, h)", "sq mean eps root div gam"),
        ("[l2] r = ReduceL2(x, last)  [clip] e = Clip(r, eps)  [ex] f = Expand(e, shape)  [div] y = Div(x, f)", "l2 clip ex div"),
        ("[sum] v = ReduceSumSquare(x, last)  [root] r = Sqrt(v)  [inv] i = Reciprocal(r)  [mul] y = Mul(x, i)", "sum root inv mul"),
        (
            f"[qx] i = QuantizeLinear(x, s, z)  [dx] d = DequantizeLinear(i, s, z)  {SQUARE.replace('(x,', '(d,')}  [qr] j = QuantizeLinear(r, s, z)  [dr] t = DequantizeLinear(j, s, z)"
            "  [div] n = Div(d, t)  [dg] h = DequantizeLinear(gamma_quantized, s, z)  [gam] y = Mul(n, h)",
            "sq mean eps root div gam",
        ),
        (f"{SQUARE}  [div] n = Div(x, r)  [gam] g = Mul(n, gamma)  [pos] y = Add(g, places)", "sq mean eps root div gam"),
        (f"{SQUARE}  [div] n = Div(x, r)  [scale] g = Mul(n, half)  [o] y = Relu(g)", "sq mean eps root div"),
        (f"{SQUARE}  [div] n = Div(x, r)  [modulate] g = Mul(n, live)  [shift] y = Add(g, live)", "sq mean eps root div"),
    ],
    ids=["layer-norm", "without-affine", "two-subs", "two-means", "reciprocal", "factor-and-shift", "mean-square-less-squared-mean", "rms", "cast", "leading-cast", "power-less", "power-half", "one-plus-gamma", "length", "sum-of-squares", "qdq", "position-behind", "scalar-behind", "modulation"],
)  # fmt: skip
def test_spelt_out(body: str, hit: str) -> None:
    assert norm(body) == hit


@pytest.mark.parametrize(
    "body",
    [
        "[sub] c = Sub(x, live)  [sq] q = Pow(c, two)  [sum] v = ReduceSum(q, last)  [root] y = Sqrt(v)",
        f"{SQUARE}  [div] y = Div(live, r)",
        f"{SQUARE}  [div] y = Div(r, x)",
        f"{SQUARE}  [mul] y = Mul(x, r)",
        f"{SQUARE}  [inv] i = Reciprocal(r)  [div] y = Div(x, i)",
        "[mean] m = ReduceMean(x, last)  [div] y = Div(x, m)",
        "[root] r = Sqrt(x)  [div] y = Div(x, r)",
        "[sq] q = Mul(w, w)  [mean] v = ReduceMean(q, last)  [root] r = Sqrt(v)  [div] u = Div(w, r)  [o] y = MatMul(x, u)",
        "[cube] q = Pow(x, eps)  [mean] v = ReduceMean(q, last)  [root] r = Sqrt(v)  [div] y = Div(x, r)",
        "[softmax] y = Softmax(x)",
    ],
    ids=["distance", "other-divided", "inverted", "multiplied", "divided-by-inverse", "mean", "root", "of-a-weight", "no-square", "softmax"],
)  # fmt: skip
def test_none(body: str) -> None:
    assert norm(body) == ""


@pytest.mark.parametrize(
    "node",
    [
        "LayerNormalization <axis = -1> (x, gamma, beta)",
        "RMSNormalization <axis = -1> (x, gamma)",
        "SimplifiedLayerNormalization(x, gamma)",
        "com.microsoft.SkipLayerNormalization(x, live, gamma, beta)",
        "com.microsoft.SkipSimplifiedLayerNormalization(x, live, gamma)",
        "GroupNormalization <num_groups = 2> (x, gamma, beta)",
        "InstanceNormalization(x, gamma, beta)",
        "LpNormalization(x)",
        "BatchNormalization(x, gamma, beta, gamma, beta)",
    ],
)
def test_one_operator(node: str) -> None:
    assert norm(f"[n] y = {node}", FUSED) == "n"


def test_group_normalization_of_instance_normalization() -> None:
    """x → [N, groups, …] → InstanceNormalization → back → γ → β."""
    body = "[r0] a = Reshape(x, shape)  [in] b = InstanceNormalization(a, gamma, beta)  [r1] c = Reshape(b, shape)  [g] d = Mul(c, gamma)  [b] y = Add(d, beta)"
    assert norm(body) == "r0 in r1 g b"
    assert norm(body.replace("Mul(c, gamma)", "Mul(c, half)").replace("Add(d, beta)", "Relu(d)")) == "in"


def test_the_norms_of_two_layers_share_nothing() -> None:
    def layer(k: int, source: str, output: str) -> str:
        return (
            f"[sq{k}] q{k} = Pow({source}, two)  [mean{k}] v{k} = ReduceMean(q{k}, last)  [root{k}] r{k} = Sqrt(v{k})"
            f"  [div{k}] n{k} = Div({source}, r{k})  [gam{k}] g{k} = Mul(n{k}, gamma)  [o{k}] u{k} = MatMul(g{k}, w)  [add{k}] {output} = Add({source}, u{k})"
        )

    body = f"{layer(0, 'x', 't')} {layer(1, 't', 'y')}"
    assert norm(body) == "sq0 mean0 root0 div0 gam0 sq1 mean1 root1 div1 gam1"
