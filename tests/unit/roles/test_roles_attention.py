"""Roles of attention: the two products and the softmax between, in every form that exporters and tools write."""

from __future__ import annotations

import pytest
from qdq_passes.roles import skeleton as roles_skeleton

from tests.cases.small_models import FUSED, names_of

#: x [1, 4, 8], two heads of four; {scores} makes sm's input from qk, {probs} makes what pv reads from p.
PLAIN = """
g (float[1,4,8] x, float[1,1,4,4] mask) => (float[1,4,8] y)
<float[8,8] wq, float[8,8] wk, float[8,8] wv, float[8,8] wo, float scale = {{0.5}}, int64[4] heads = {{1,4,2,4}}, int64[3] flat = {{1,4,8}},
 float zero = {{0}}, float low = {{-10000}}, float[2,2] talk, int64[2] both = {{2,2}}>
{{
  [q] q0 = MatMul(x, wq)  [k] k0 = MatMul(x, wk)  [v] v0 = MatMul(x, wv)
  [rq] q1 = Reshape(q0, heads)  [rk] k1 = Reshape(k0, heads)  [rv] v1 = Reshape(v0, heads)
  [tq] q2 = Transpose <perm = [0,2,1,3]> (q1)  [tk] k2 = Transpose <perm = [0,2,3,1]> (k1)  [tv] v2 = Transpose <perm = [0,2,1,3]> (v1)
  [qk] s = MatMul(q2, k2)
  {scores}
  [sm] p = Softmax(t)
  {probs}
  [pv] a = MatMul(r, v2)
  [ta] a1 = Transpose <perm = [0,2,1,3]> (a)  [ra] a2 = Reshape(a1, flat)  [o] y = MatMul(a2, wo)
}}"""
CAST = "[c1] ps = Identity(p)  [c2] r = Cast <to = 1> (ps)"


def attention(text: str) -> tuple[str, str, str]:
    return names_of(text, "qk_bmm"), names_of(text, "softmax"), names_of(text, "pv_bmm")


@pytest.mark.parametrize(
    ("scores", "probs"),
    [
        ("[i] t = Identity(s)", "[j] r = Identity(p)"),
        ("[m] t = Mul(s, scale)", "[j] r = Dropout(p)"),
        ("[m] t0 = Div(s, scale)  [a] t = Add(t0, mask)", CAST),
        ("[b] keep = Cast <to = 9> (mask)  [w] t = Where(keep, s, low)", "[n] bad = IsNaN(p)  [w2] r = Where(bad, zero, p)"),
        ("[d] t0 = Div(s, scale)  [tanh] t1 = Tanh(t0)  [m] t2 = Mul(t1, scale)  [a] t = Add(t2, mask)", "[j] r = Identity(p)"),
        ("[mx] t0 = Max(s, low)  [c] t1 = Clip(t0, low)  [n] t = Neg(t1)", "[m] r = Mul(p, mask)"),
        ("[f] t0 = Cast <to = 10> (s)  [a] t1 = Cast <to = 1> (t0)  [r0] t = Reshape(t1, heads)", "[r1] r = Reshape(p, heads)"),
        ("[g] i = QuantizeLinear(s, scale)  [h] t = DequantizeLinear(i, scale)", "[g2] i2 = QuantizeLinear(p, scale)  [h2] r = DequantizeLinear(i2, scale)"),
        ("[x1] t0 = Transpose <perm = [0,2,3,1]> (s)  [mix] t1 = MatMul(t0, talk)  [x2] t = Transpose <perm = [0,3,1,2]> (t1)", "[j] r = Identity(p)"),
        ("[cat] c = Concat <axis = -1> (s, mask)  [a] t = Identity(c)", "[cut] r, r_ = Split <axis = -1> (p, both)"),
    ],
    ids=["plain", "scale+dropout", "mask+cast", "where+isnan", "softcap", "clip", "reshape", "qdq", "talking-heads", "sink"],
)  # fmt: skip
def test_what_may_stand_between(scores: str, probs: str) -> None:
    assert attention(PLAIN.format(scores=scores, probs=probs)) == ("qk", "sm", "pv")


@pytest.mark.parametrize(
    "scores", ["[e] t = Exp(s)", "[m] t = ReduceMean(s)", "[m] t = Relu(s)", "[m] t = com.acme.Mystery(s)"]
)
def test_what_may_not_stand_between(scores: str) -> None:
    assert attention(PLAIN.format(scores=scores, probs="[j] r = Identity(p)")) == ("", "", "")


def test_a_softmax_spelt_out() -> None:
    text = PLAIN.format(scores="", probs="[j] r = Identity(p)").replace(
        "[sm] p = Softmax(t)",
        "[mx] h = ReduceMax <axes = [-1]> (s)  [sub] t = Sub(s, h)  [exp] e = Exp(t)  [sum] n = ReduceSum(e)  [div] p = Div(e, n)",
    )
    assert attention(text) == ("qk", "mx sub exp sum div", "pv")


def test_scores_of_a_mask_made_by_a_product_are_none() -> None:
    """A padding mask as the outer product of itself, shared by two layers."""
    text = """
    g (float[4,8] x, float[4,1] m) => (float[4,8] y) {
      [mt] n = Transpose(m)  [outer] mask = MatMul(m, n)
      [qk0] s0 = MatMul(x, x)  [a0] t0 = Add(s0, mask)  [sm0] p0 = Softmax(t0)  [pv0] x1 = MatMul(p0, x)
      [qk1] s1 = MatMul(x1, x1)  [a1] t1 = Add(s1, mask)  [sm1] p1 = Softmax(t1)  [pv1] y = MatMul(p1, x1)
    }"""
    assert attention(text) == ("qk0 qk1", "sm0 sm1", "pv0 pv1")


def test_scores_handed_on_to_the_next_layer() -> None:
    """Each layer adds the scores of the one before; every product is one layer's only."""
    text = """
    g (float[4,8] x) => (float[4,8] y) {
      [qk0] s0 = MatMul(x, x)  [sm0] p0 = Softmax(s0)  [pv0] x1 = MatMul(p0, x)
      [qk1] t1 = MatMul(x1, x1)  [add] s1 = Add(t1, s0)  [sm1] p1 = Softmax(s1)  [pv1] y = MatMul(p1, x1)
    }"""
    assert attention(text) == ("qk0 qk1", "sm0 sm1", "pv0 pv1")


def test_past_and_new_keys_in_two_products() -> None:
    text = """
    g (float[1,8] x, float[4,8] pk, float[4,8] pv) => (float[1,8] y) <int64[2] parts = {4,1}> {
      [tk] kt = Transpose(pk)  [tx] xt = Transpose(x)
      [qk0] s0 = MatMul(x, kt)  [qk1] s1 = MatMul(x, xt)  [cat] s = Concat <axis = -1> (s0, s1)
      [sm] p = Softmax(s)  [cut] p0, p1 = Split <axis = -1> (p, parts)
      [pv0] a0 = MatMul(p0, pv)  [pv1] a1 = MatMul(p1, x)  [sum] y = Add(a0, a1)
    }"""
    assert attention(text) == ("qk0 qk1", "sm", "pv0 pv1")


def test_einsum() -> None:
    text = """
    g (float[2,4,8] x) => (float[2,4,8] y) <float[8,2,4] wq, float[8,2,4] wk, float[8,2,4] wv, float[2,4,8] wo> {
      [q] q = Einsum <equation = "bsd,dhk->bshk"> (x, wq)
      [k] k = Einsum <equation = "bsd,dhk->bshk"> (x, wk)
      [v] v = Einsum <equation = "bsd,dhk->bshk"> (x, wv)
      [qk] s = Einsum <equation = "bqhk,bshk->bhqs"> (q, k)
      [sm] p = Softmax(s)
      [pv] a = Einsum <equation = "bhqs,bshk->bqhk"> (p, v)
      [o] y = Einsum <equation = "bqhk,hkd->bqd"> (a, wo)
    }"""
    assert attention(text) == ("qk", "sm", "pv")
    assert names_of(text, "kv") == "k v"
    outer = text.replace('"bqhk,bshk->bhqs"', '"bqhk,bshk->bhqk"')
    assert attention(outer) == ("", "", ""), "nothing is summed over that both operands have"


def test_learned_queries() -> None:
    """Attention pooling: the queries come from parameters alone, stored or projected."""
    stored = """
    g (float[1,4,8] x) => (float[1,1,8] y) <float[1,1,8] probe, float[8,8] wk> {
      [k] k = MatMul(x, wk)  [t] kt = Transpose <perm = [0,2,1]> (k)  [qk] s = MatMul(probe, kt)  [sm] p = Softmax(s)  [pv] y = MatMul(p, x)
    }"""
    assert attention(stored) == ("qk", "sm", "pv")
    projected = stored.replace("[qk] s = MatMul(probe, kt)", "[q] q = MatMul(probe, wk) [qk] s = MatMul(q, kt)")
    assert attention(projected) == ("qk", "sm", "pv")
    alone = """
    g (float[1,4,8] x) => (float[1,4,8] y) <float[4,8] at, float[8,8] w> {
      [q] q = MatMul(at, w)  [k] k0 = MatMul(at, w)  [v] v = MatMul(at, w)  [t] k = Transpose(k0)
      [qk] s = MatMul(q, k)  [sm] p = Softmax(s)  [pv] a = MatMul(p, v)  [add] y = Add(a, x)
    }"""
    assert attention(alone) == ("qk", "sm", "pv")


@pytest.mark.parametrize(
    "text",
    [
        "g (float[1,8] x) => (float[1,4] y) <float[8,4] w> { [fc] s = MatMul(x, w)  [sm] y = Softmax(s) }",
        "g (float[4,8] x, float[4,8] z) => (float[4,4] y) { [t] zt = Transpose(z)  [sim] s = MatMul(x, zt)  [sm] y = Softmax(s) }",
        "g (float[4,8] x) => (float[1,8] y) <float[8,1] w> { [fc] s = MatMul(x, w)  [t] u = Transpose(s)  [sm] p = Softmax(u)  [pool] y = MatMul(p, x) }",
        "g (float[1,8] x) => (float[1,8] y) <float[8,4] w, float[4,8] m> { [fc] s = MatMul(x, w)  [sm] p = Softmax(s)  [look] y = MatMul(p, m) }",
        """g (float[1,3,8,8] x) => (float[1,5] y) <float[4,3,3,3] w, float[4,5] v, int64[2] two = {1,4}>
        { [c] a = Conv(x, w)  [r] b = Relu(a)  [p] d = GlobalAveragePool(b)  [f] e = Reshape(d, two)  [fc] s = Gemm(e, v)  [sm] y = Softmax(s) }""",
    ],
    ids=["classifier", "similarity", "pooling", "memory", "conv-net"],
)  # fmt: skip
def test_no_attention(text: str) -> None:
    assert attention(text) == ("", "", "")


def test_a_model_cut_behind_its_softmax_has_scores_of_heads() -> None:
    text = PLAIN.format(scores="[m] t = Mul(s, scale)", probs="")
    cut = text.replace("(float[1,4,8] y)\n", "(float[1,2,4,4] p)\n").split("  \n  [pv]")[0] + "}"
    assert attention(cut) == ("qk", "sm", "")


@pytest.mark.parametrize(
    ("node", "kv"),
    [
        ("[a] y, pk, pv = Attention <q_num_heads = 2, kv_num_heads = 2> (q, k, v, , k4, v4)", "k v a"),
        ("[a] y = Attention <q_num_heads = 2, kv_num_heads = 2> (q, k, v)", "k v"),
        ("[a] y, , , scores = Attention <q_num_heads = 2, kv_num_heads = 2> (q, k, v)", "k v"),
        ("[a] y = ai.onnx.preview.FlexAttention(q, k, v)", "k v"),
        ("[a] y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v)", "k v"),
        ("[a] y, pk, pv = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1> (q, k, v, k4, v4, n, n)", "k v a"),
        ("[a] y = com.microsoft.Attention <num_heads = 2> (x, w3)", "a"),
        ("[a] y, pk, pv = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1, do_rotary = 1> (k, , , k4, v4, n, n)", "k a"),
    ],
    ids=["Attention+cache", "Attention", "Attention+scores", "FlexAttention", "MultiHeadAttention", "GroupQueryAttention", "contrib-Attention", "packed"],
)  # fmt: skip
def test_fused(node: str, kv: str) -> None:
    text = f"""{FUSED}
    g (float[1,4,8] x, float[1,2,3,4] k4, float[1,2,3,4] v4, int32[1] n) => (float[1,4,8] y) <float[8,8] wq, float[8,8] wk, float[8,8] wv, float[8,24] w3> {{
      [q] q = MatMul(x, wq)  [k] k = MatMul(x, wk)  [v] v = MatMul(x, wv)
      {node}
    }}"""
    assert attention(text) == ("a", "a", "a")
    assert names_of(text, "kv") == kv
    assert names_of(text, "rope") == ("a" if "do_rotary" in node else "")


def test_a_function_of_that_name_elsewhere_is_not_known() -> None:
    text = """g (float[1,4,8] x) => (float[1,4,8] y) { [a] y = com.acme.Attention(x, x, x) }"""
    assert attention(text) == ("", "", "")


def test_integers() -> None:
    """QLinearMatMul and QLinearSoftmax, and MatMulInteger with its scale behind."""
    text = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    g (int8[4,8] x, float[4,8] f) => (int8[4,8] y, float[4,8] z) <float s = {0.5}, int8 n = {0}> {
      [qk] a = QLinearMatMul(x, s, n, x, s, n, s, n)
      [sm] p = com.microsoft.QLinearSoftmax <opset = 13> (a, s, n, s, n)
      [pv] y = QLinearMatMul(p, s, n, x, s, n, s, n)
      [dq] i, si, zi = DynamicQuantizeLinear(f)
      [qk2] b = MatMulInteger(i, i, zi, zi)  [cast] c = Cast <to = 1> (b)  [ss] sq = Mul(si, si)  [scale] d = Mul(c, sq)
      [sm2] e = Softmax(d)
      [dq2] j, sj, zj = DynamicQuantizeLinear(e)
      [pv2] g = MatMulInteger(j, i, zj, zi)  [cast2] h = Cast <to = 1> (g)  [ss2] sr = Mul(sj, si)  [scale2] z = Mul(h, sr)
    }"""
    assert attention(text) == ("qk qk2", "sm sm2", "pv pv2")


def test_across_functions_and_bodies() -> None:
    """The products in functions, the softmax in the branches of an If, all in the body of a Loop."""
    text = """<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
    g (float[4,8] x, bool c, int64 n) => (float[4,8] y) {
      [loop] y = Loop (n, c, x) <body = b (int64 i, bool go, float[4,8] h) => (bool stay, float[4,8] next) {
        [same] stay = Identity(go)
        [call] s = local.Scores(h)
        [if] p = If (go) <then_branch = t () => (float[4,4] u) { [sm_then] u = Softmax(s) }, else_branch = e () => (float[4,4] w) { [sm_else] w = Softmax <axis = -1> (s) }>
        [pv] next = MatMul(p, h)
      }>
    }
    <opset_import: ["" : 21], domain: "local"> Scores (q) => (s) { [t] k = Transpose(q)  [qk] s = MatMul(q, k) }"""
    assert attention(text) == ("qk", "sm_then sm_else", "pv")


def test_weights_are_weights_when_a_function_gets_them() -> None:
    """One function for every product: it has the role of each of its calls."""
    text = """<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
    g (float[4,8] x) => (float[4,2] y) <float[8,2] w> { [fc] s = local.Times(x, w)  [sm] y = Softmax(s) }
    <opset_import: ["" : 21], domain: "local"> Times (a, b) => (c) { [mm] c = MatMul(a, b) }"""
    assert attention(text) == ("", "", "")
    assert names_of(text, "head") == "mm"


def test_the_order_of_the_file_does_not_matter() -> None:
    text = (
        """g (float[4,8] x) => (float[4,8] y) { [pv] y = MatMul(p, x)  [sm] p = Softmax(s)  [qk] s = MatMul(x, x) }"""
    )
    assert attention(text) == ("qk", "sm", "pv")


def test_initializers_that_are_inputs_are_weights() -> None:
    """Files of IR 3 list every initializer among the inputs."""
    text = """<ir_version: 3, opset_import: ["" : 9]>
    g (float[1,8] x, float[8,4] w) => (float[1,4] y) <float[8,4] w> { [fc] s = MatMul(x, w)  [sm] y = Softmax(s) }"""
    assert attention(text) == ("", "", "")


def test_functions_that_double_at_each_level_are_opened_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = "".join(
        f'<opset_import: ["" : 21, "local" : 1], domain: "local"> f{k} (x) => (y) {{ a = local.f{k - 1}(x)  y = local.f{k - 1}(a) }}\n'
        for k in range(1, 8)
    )
    text = f"""<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
    g (float[4,4] x) => (float[4,4] y) {{ y = local.f7(x) }}
    <opset_import: ["" : 21, "local" : 1], domain: "local"> f0 (x) => (y) {{ [qk] s = MatMul(x, x)  [sm] p = Softmax(s)  [pv] y = MatMul(p, x) }}
    {calls}"""
    monkeypatch.setattr(roles_skeleton, "LIMIT", 50)
    assert attention(text) == ("qk", "sm", "pv")
