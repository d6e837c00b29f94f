"""Roles of what stands around attention: MLPs, keys and values, embeddings and heads."""

from __future__ import annotations

import pytest

from tests.cases.small_models import FUSED, names_of

UP_DOWN = "[n] h = LayerNormalization <axis = -1> (x, gamma)  [up] u = MatMul(h, w1)  {act}  [down] d = MatMul(a, w2)"


def of(body: str, role: str, header: str = "") -> str:
    return names_of(
        f"""{header}
        g (float[1,4,8] x, float[1,1,8] gate, float[1,8,4,4] image, int64[1,4] ids) => (float[1,4,8] y)
        <float[8] gamma, float[8,16] w1, float[8,16] w3, float[16,8] w2, float[16] b1, float[8] b2, float half = {{0.5}}, float three = {{3}}, float one = {{1}}, int64[2] flat = {{4,8}},
         int64[3] back = {{1,4,8}}, int64[1] second = {{1}}, float s = {{0.5}}, uint8 low = {{0}}, int8 n = {{-128}}, float[16,8,1,1] c1, float[16,1,3,3] dw, float[8,16,1,1] c2,
         float[8,16,3,3] c3, float[32,8] words, int8[32,8] words_quantized, float[8,8] places, float[2,8] types, int64[1,4] order = {{0,1,2,3}}, int64[32,8] numbers, float[8,32] vocabulary,
         float[32] wide, float[8,3] classes, float[8,8] square>
        {{ {body} }}""",
        role,
    )


@pytest.mark.parametrize(
    ("act", "hit"),
    [
        ("[act] a = Relu(u)", "up act down"),
        ("[bias] v = Add(u, b1)  [act] a = Gelu(v)", "up bias act down"),
        ("[div] e = Div(u, half)  [erf] f = Erf(e)  [inc] g = Add(f, one)  [mul] k = Mul(u, g)  [scale] a = Mul(k, half)", "up div erf inc mul scale down"),
        (
            "[pow] e = Pow(u, three)  [m0] f = Mul(e, half)  [add] g = Add(u, f)  [m1] k = Mul(g, half)  [tanh] t = Tanh(k)  [inc] i = Add(t, one)  [m2] j = Mul(u, half)  [m3] a = Mul(j, i)",
            "up pow m0 add m1 tanh inc m2 m3 down",
        ),
        ("[sig] e = Sigmoid(u)  [silu] f = Mul(u, e)  [gate] v = MatMul(h, w3)  [mul] a = Mul(f, v)", "up sig silu gate mul down"),
        ("[cut] e, f = Split <axis = -1, num_outputs = 2> (u)  [act] g = Gelu(e)  [mul] k = Mul(g, f)  [cat] a = Concat <axis = -1> (k, k)", "up cut act mul cat down"),
        ("[act] v = Relu(u)  [q] i = QuantizeLinear(v, s, n)  [dq] a = DequantizeLinear(i, s, n)", "up act down"),
        ("[q] i = QuantizeLinear(u, s, n)  [dq] a = DequantizeLinear(i, s, n)", "up down"),
        ("[c0] v = Cast <to = 10> (u)  [act] e = Relu(v)  [c1] a = Cast <to = 1> (e)", "up c0 act c1 down"),
    ],
    ids=["relu", "bias+gelu", "erf", "tanh", "gated", "split-gate", "qdq", "relu-left-to-quantization", "cast"],
)  # fmt: skip
def test_mlp(act: str, hit: str) -> None:
    body = UP_DOWN.format(act=act)
    assert of(f"{body}  [add] y = Add(x, d)", "mlp") == hit, "before the norm"
    assert of(f"{body}  [bias2] e2 = Add(d, b2)  [add] y = Add(h, e2)", "mlp") == f"{hit} bias2", "behind the norm"


@pytest.mark.parametrize(
    "end",
    [
        "[scale] e = Mul(d, gamma)  [add] y = Add(e, x)",
        "[gated] e = Mul(d, gate)  [drop] f = Dropout(e)  [add] y = Add(x, f)",
        "[post] e = LayerNormalization <axis = -1> (d, gamma)  [add] y = Add(x, e)",
        "[o] e = MatMul(h, square)  [both] f = Add(e, d)  [add] y = Add(f, x)",
        "[r] e = Reshape(d, flat)  [r2] f = Reshape(e, back)  [add] y = Add(x, f)",
        "[skip] y = com.microsoft.SkipLayerNormalization(d, x, gamma)",
    ],
    ids=["layer-scale", "gate", "norm-behind", "beside-attention", "reshape", "skip-norm"],
)  # fmt: skip
def test_ways_to_the_residual(end: str) -> None:
    body = UP_DOWN.format(act="[act] a = Relu(u)")
    assert of(f"{body}  {end}", "mlp", FUSED) == "up act down"


@pytest.mark.parametrize(
    "body",
    [
        f"{UP_DOWN.format(act='[act] a = Relu(u)')}  [out] y = Tanh(d)",
        f"{UP_DOWN.format(act='[act] a = Relu(u)')}  [out] y = Add(d, gate)",
        f"{UP_DOWN.format(act='[id] a = Mul(u, half)')}  [add] y = Add(x, d)",
        f"{UP_DOWN.format(act='[act] e = Relu(u)  [res] a = Add(e, gate)')}  [add] y = Add(x, d)",
        f"{UP_DOWN.format(act='[sm] a = Softmax(u)')}  [add] y = Add(x, d)",
    ],
    ids=["classifier", "other-sum", "low-rank", "another-stream", "softmax"],
)  # fmt: skip
def test_no_mlp(body: str) -> None:
    assert of(body, "mlp") == ""


@pytest.mark.parametrize(
    ("body", "hit"),
    [
        ("[up] u = Conv(image, c1)  [act] a = Relu(u)  [down] d = Conv(a, c2)  [add] e = Add(image, d)", "up act down"),
        ("[up] u = Conv(image, c1)  [dw] v = Conv <group = 16, pads = [1,1,1,1]> (u, dw)  [act] a = Relu(v)  [down] d = Conv(a, c2)  [add] e = Add(image, d)", "up dw act down"),
        ("[up] u = Conv(image, c1)  [act] v = Relu(u)  [dw] a = Conv <group = 16, pads = [1,1,1,1]> (v, dw)  [down] d = Conv(a, c2)  [add] e = Add(image, d)", ""),
        ("[up] u = Conv(image, c1)  [act] a = Relu(u)  [down] d = Conv <pads = [1,1,1,1]> (a, c3)  [add] e = Add(image, d)", ""),
        ("[pool] p = GlobalAveragePool(image)  [up] u = Conv(p, c1)  [act] a = Relu(u)  [down] d = Conv(a, c2)  [sig] g = Sigmoid(d)  [se] e = Mul(image, g)", ""),
    ],
    ids=["pointwise", "mixed", "inverted-residual", "bottleneck", "squeeze-excite"],
)  # fmt: skip
def test_convolutions(body: str, hit: str) -> None:
    assert of(f"{body}  [r] y = Reshape(e, back)", "mlp") == hit


def test_experts() -> None:
    body = '[moe] y = com.microsoft.MoE(x, w1, w1, "", w1)'
    assert of(body, "mlp", FUSED) == "moe"


@pytest.mark.parametrize(
    ("body", "hit"),
    [
        ("[e] y = Gather(words, ids)", "e"),
        ("[dq] w = DequantizeLinear(words_quantized, s)  [e] y = Gather(w, ids)", "e"),
        ("[e] i = Gather(words_quantized, ids)  [dq] y = DequantizeLinear(i, s)", "e dq"),
        ("[e] i = Gather(words_quantized, ids)  [o] y = com.microsoft.QLinearSigmoid(i, s, n, s, n)", "e"),
        ("[t] w = Transpose(words)  [t2] v = Transpose(w)  [e] y = Gather(v, ids)", "e"),
        ("[q] i = QuantizeLinear(words, s)  [dq] w = DequantizeLinear(i, s)  [e] y = Gather(w, ids)", "e"),
        ("[e] a = Gather(words, ids)  [p] b = Gather(places, order)  [add] y = Add(a, b)", "e p"),
        ("[p] b = Gather(places, order)  [t] c = Gather(types, ids)  [a0] d = Add(b, c)  [e] a = Gather(words, ids)  [a1] y = Add(a, d)", "p t e"),
        ("[sh] r = Shape <start = 1, end = 2> (ids)  [sq] l = Squeeze(r)  [rg] at = Range(low64, l, one64)  [p] b = Gather(places, at)  [e] a = Gather(words, ids)  [add] y = Add(a, b)", "p e"),
        ("[p] b = Gather(places, order)  [add] y = Add(x, b)", ""),
        ("[e] y = Gather <axis = 1> (words, ids)", ""),
        ("[e] i = Gather(numbers, ids)  [c] y = Cast <to = 1> (i)", ""),
        ("[e] y = Gather <axis = 1> (x, second)", ""),
        ("[g] y = com.microsoft.EmbedLayerNormalization(ids, ids, words, places, types, gamma, b2)", "g"),
    ],
    ids=["gather", "dq-before", "dq-behind", "integers", "transposed", "pair", "positions", "three", "positions-by-shape", "bias-table", "columns", "integer-table", "activation", "fused"],
)  # fmt: skip
def test_embedding(body: str, hit: str) -> None:
    body = body.replace("low64", "z64").replace("one64", "i64")
    text = "[z0] z64 = Constant <value_int = 0> ()  [z1] i64 = Constant <value_int = 1> ()  " + body
    assert of(text, "embedding", FUSED) == hit


LOGITS = "[e] h = Gather(words, ids)  [r] z = Relu(h)  "


@pytest.mark.parametrize(
    ("body", "head", "lm"),
    [
        (LOGITS + "[out] y = MatMul(z, vocabulary)", "out", "out"),
        (LOGITS + "[t] w = Transpose(words)  [out] y = MatMul(z, w)", "out", "out"),
        (LOGITS + "[out] o = MatMul(z, vocabulary)  [b] l = Add(o, wide)  [c] m = Cast <to = 1> (l)  [sm] y = Softmax(m)", "out b", "out b"),
        (LOGITS + "[out] o = MatMul(z, vocabulary)  [d] l = Div(o, three)  [tanh] t = Tanh(l)  [m] y = Mul(t, three)", "out", "out"),
        (LOGITS + "[o0] a = MatMul(z, w1)  [o1] b = MatMul(z, w3)  [cat] y = Concat <axis = -1> (a, b)", "o0 o1", "o0 o1"),
        (LOGITS + "[mid] m = MatMul(z, square)  [out] y = MatMul(m, classes)", "out", ""),
        ("[fc] y = MatMul(x, classes)", "fc", ""),
        ("[one] a = MatMul(x, classes)  [two] b = MatMul(x, square)  [cat] c = Concat <axis = -1> (a, b)  [o] y = Identity(c)", "one two", ""),
        ("[c] a = Conv(image, c1)  [up] b = ConvTranspose(a, dw1)  [o] y = Identity(b)", "up", ""),
        ("[bins] a = MatMul(x, w1)  [sm] p = Softmax(a)  [expect] y = MatMul(p, w2)", "bins", ""),
        (f"{UP_DOWN.format(act='[act] a = Relu(u)')}  [add] y = Add(x, d)", "", ""),
        ("[n] y = Relu(x)", "", ""),
        ("[fc] a = MatMul(x, square)  [tail] b = MatMul(x, square)  [o] y = MatMul(a, classes)", "o", ""),
    ],
    ids=["lm", "tied", "bias+softmax", "softcap", "chunks", "classifier-behind-embedding", "plain", "two", "transposed-conv", "expectation", "mlp", "nothing", "unused"],
)  # fmt: skip
def test_heads(body: str, head: str, lm: str) -> None:
    body = (
        "[k] dw1 = Constant <value = float[16,2,1,1] {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}> ()  "
        + body
    )
    assert of(body, "head") == head
    assert of(body, "lm_head") == lm


def test_packed_weights() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    g (int64[1,4] ids) => (float[1,4,32] y) <float[32,16] words, uint8[32,1,8] w, float[32] s> {
      [e] h = Gather(words, ids)  [r] z = Relu(h)  [out] y = com.microsoft.MatMulNBits <K = 16, N = 32, bits = 4, block_size = 16> (z, w, s)
    }"""
    assert names_of(text, "lm_head") == "out"
    assert names_of(text, "head") == "out"


def test_decoder_without_embedding() -> None:
    """Fed with vectors: what widens behind a cache is the language head, what does not is none."""
    text = """
    g (float[1,4,8] x, float[1,3,8] pk) => (float[1,4,WIDTH] y, float[1,7,8] k) <float[8,8] wq, float[8,8] wk, float[8,8] wo, float[8,WIDTH] w> {
      [q] q = MatMul(x, wq)  [kp] k0 = MatMul(x, wk)  [cat] k = Concat <axis = 1> (pk, k0)  [t] kt = Transpose <perm = [0,2,1]> (k)
      [qk] s = MatMul(q, kt)  [sm] p = Softmax(s)  [pv] a = MatMul(p, k)  [o] b = MatMul(a, wo)  [add] h = Add(x, b)  [out] y = MatMul(h, w)
    }"""
    assert names_of(text.replace("WIDTH", "32"), "lm_head") == "out"
    assert names_of(text.replace("WIDTH", "4"), "lm_head") == ""
    assert names_of(text.replace("WIDTH", "4"), "head") == "out"


#: Keys of one head: {make} writes k from x, {use} makes what the product reads of it, kt.
KEYS = """
g (float[1,4,8] x, float[1,3,8] pk, float[1,4,8] c, int64[1,7,8] at) => (float[1,4,8] y{outputs})
<float[8,8] wq, float[8,8] wk, float[8,8] wv, float[8,2] la, float[2,8] lb, float[8] b, float[8] gamma, int64[1] axis = {{-1}}, int64[1] zero = {{0}}, int64[1] four = {{4}}, int64[1] eight = {{8}},
 float half = {{0.5}}, float two = {{2}}, int64[1] one = {{1}}, float[8,24] wqkv, float[1,7,8] sk, int8 n = {{0}}>
{{
  [q] q = MatMul(x, wq)  [v] v = MatMul(x, wv)
  {make}  {use}
  [t] kt = Transpose <perm = [0,2,1]> (kc)  [qk] s = MatMul(q, kt)  [sm] p = Softmax(s)  [pv] y = MatMul(p, v)
}}"""


def kv(make: str, use: str = "[id] kc = Identity(k)", outputs: str = "") -> str:
    return names_of(KEYS.format(make=make, use=use, outputs=outputs), "kv")


@pytest.mark.parametrize(
    ("make", "use", "outputs", "hit"),
    [
        ("[k] k = MatMul(x, wk)", "[id] kc = Identity(k)", "", "v k id t"),
        ("[k] k0 = MatMul(x, wk)  [kb] k = Add(k0, b)", "[id] kc = Identity(k)", "", "v k kb id t"),
        ("[k] k = MatMul(x, wk)", "[cat] kc = Concat <axis = 1> (pk, k)", ", float[1,7,8] kc", "v k cat t"),
        ("[k] k = MatMul(x, wk)", "[dq] pf = Mul(pk, half)  [cat] kc = Concat <axis = 1> (pf, k)", ", float[1,7,8] kc", "v k dq cat t"),
        ("[k] k = MatMul(x, wk)", "[put] kc = ScatterElements <axis = 1> (pk, at, k)", ", float[1,7,8] kc", "v k put t"),
        ("[k] k = MatMul(x, wk)", "[cat] kc = Concat <axis = 1> (pk, k)  [tp] turned = Transpose(kc)  [cp] copy = Reshape(turned, axis)", ", float[56] copy", "v k cat tp cp t"),
        ("[k] k = MatMul(x, wk)", "[cat] kc = Concat <axis = 1> (pk, k)  [q8] i8 = QuantizeLinear(kc, half, n)", ", int8[1,7,8] i8", "v k cat t"),
        ("[l0] a0 = MatMul(x, la)  [l1] a1 = MatMul(a0, lb)  [ls] a2 = Mul(a1, half)  [k] k0 = MatMul(x, wk)  [la] k = Add(k0, a2)", "[id] kc = Identity(k)", "", "v l1 ls k la id t"),
        (
            "[k] k0 = MatMul(x, wk)  [sq] e = Pow(k0, two)  [mean] m = ReduceMean(e, axis)  [root] r = Sqrt(m)  [div] d = Div(k0, r)  [gam] k = Mul(d, gamma)",
            "[id] kc = Identity(k)", "", "v k sq mean root div gam id t",
        ),
        (
            "[k] k0 = MatMul(x, wk)  [lo] a = Slice(k0, zero, four, axis)  [hi] d = Slice(k0, four, eight, axis)  [neg] nd = Neg(d)  [rot] h = Concat <axis = -1> (nd, a)"
            "  [cc] c2 = Concat <axis = 1> (c, c)  [ch] c3 = Slice(c2, zero, four, one)  [xc] f = Mul(k0, c3)  [hs] g = Mul(h, c)  [add] k = Add(f, g)",
            "[cat] kc = Concat <axis = 1> (pk, k)", "", "v k lo hi neg rot xc hs add cat t",
        ),
        ("[one] z = MatMul(x, wqkv)  [cut] z0, k, z1 = Split <axis = -1, num_outputs = 3> (z)", "[id] kc = Identity(k)", "", "v one cut id t"),
        ("[res] k = Add(x, c)", "[id] kc = Identity(k)", "", "v"),
        ("[id0] k = Identity(x)", "[cat] kc = Concat <axis = 1> (pk, k)", ", float[1,7,8] kc", "v cat t"),
    ],
    ids=["projection", "bias", "past", "past-scaled", "scatter", "present", "present-quantized", "adapter", "norm", "rope", "packed", "no-projection", "keys-given"],
)  # fmt: skip
def test_keys(make: str, use: str, outputs: str, hit: str) -> None:
    found = kv(make, use, outputs).split()
    assert sorted(found) == sorted(hit.split())


def test_the_queries_are_not_in_it() -> None:
    assert "q" not in kv("[k] k = MatMul(x, wk)").split()
