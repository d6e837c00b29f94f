"""decompose-attention, decompose-multi-head-attention and expose-kv-cache, against onnxruntime's operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from qdq_passes import run_pipeline
from qdq_passes.decoder.look.io import decoder_io
from qdq_passes.pipeline.hooks import VerifyEach

from qdqtool.runtime.session import open_session
from tests.cases.small_models import model

Array = npt.NDArray[Any]
#: Sums of 8 products and 7 weights in another order, (8 + 7)·2^-24 of values up to 2^2, twice; of float16: three roundings.
BOUND = {np.float32: 2.0**-17, np.float16: 2.0**-8}
HEADER = '<ir_version: 11, opset_import: ["" : %d, "com.microsoft" : 1]>'
FLAT = "float[2,S,16] q, float[2,S,16] k, float[2,S,16] v"
HEADS = "float[2,4,S,8] q, float[2,2,S,8] k, float[2,2,S,8] v"
PAST = "float[2,2,P,8] pk, float[2,2,P,8] pv"
PRESENT = "float[2,2,T,8] a, float[2,2,T,8] b"
SEEN = np.random.default_rng(5).integers(0, 2, (3, 7)).astype(bool)
SEEN[1] = False
PADDING = np.array([[0, 1, 1, 1, 1, 1, 1], [1] * 7], np.int32)


def array(*shape: int) -> Array:
    return np.random.default_rng(len(shape) + sum(shape)).normal(size=shape).astype(np.float32)


def differences(text: str, passes: str, feed: dict[str, Array], dtype: Any = np.float32) -> None:
    """The passes act, and the numbers stay."""
    original, edited = model(text), model(text)
    report = run_pipeline(edited, passes, hooks=[VerifyEach()])
    assert report.modified
    values = {name: value.astype(dtype) if value.dtype == np.float32 else value for name, value in feed.items()}
    expected, got = open_session(original).run(values), open_session(edited).run(values)
    assert list(got) == list(expected)
    for name, value in expected.items():
        assert got[name].shape == value.shape
        assert not np.isnan(got[name]).any()
        error = np.abs(got[name].astype(np.float32) - value.astype(np.float32)).max()
        assert error <= BOUND[dtype] * max(np.abs(value).max(), 1), name


def attention(inputs: str, y: str, arguments: str, options: str = "", opset: int = 23) -> str:
    options = f"<{options}>" if options else ""
    return f"{HEADER % opset} g ({inputs}) => ({y} y, {PRESENT}) {{ [att] y, a, b = Attention{options}({arguments}) }}"


PASSES = ["decompose-attention", "expose-kv-cache", "expose-kv-cache,decompose-attention"]
ATTENTIONS: dict[str, tuple[str, str, dict[str, Array]]] = {
    "causal": ('q, k, v, "", pk, pv', "is_causal: int = 1", {}),
    "softcap and scale": ('q, k, v, "", pk, pv', "scale: float = 0.4, softcap: float = 2.0", {}),
    "booleans": ("q, k, v, m, pk, pv", "", {"bool[S,T] m": SEEN}),
    "booleans, causal": ("q, k, v, m, pk, pv", "is_causal: int = 1", {"bool[S,T] m": SEEN}),
    "bias, causal": (
        "q, k, v, m, pk, pv",
        "is_causal: int = 1, softmax_precision: int = 1",
        {"float[2,1,S,T] m": array(2, 1, 3, 7)},
    ),
}


@pytest.mark.newest
@pytest.mark.parametrize("passes", PASSES)
@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("flat", [True, False])
def test_attention_with_a_past(name: str, passes: str, flat: bool) -> None:
    arguments, options, more = ATTENTIONS[name]
    inputs = ", ".join([FLAT if flat else HEADS, PAST, *more])
    if flat:
        options = ", ".join(["q_num_heads: int = 2, kv_num_heads: int = 2", *([options] if options else [])])
    text = attention(inputs, "float[2,S,16]" if flat else "float[2,4,S,8]", arguments, options)
    shapes = (
        {"q": (2, 3, 16), "k": (2, 3, 16), "v": (2, 3, 16)}
        if flat
        else {"q": (2, 4, 3, 8), "k": (2, 2, 3, 8), "v": (2, 2, 3, 8)}
    )
    feed = {key: array(*shape) for key, shape in {**shapes, "pk": (2, 2, 4, 8), "pv": (2, 2, 4, 8)}.items()}
    differences(text, passes, {**feed, **{key.split()[1]: value for key, value in more.items()}})


@pytest.mark.newest
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("lengths", [None, (7, 5), (2, 1)])
def test_attention_without_a_past(causal: int, lengths: tuple[int, int] | None) -> None:
    """Keys in number of rows of their own: queries are the last ones; where they are more than the keys, they see nothing."""
    arguments, more = ('q, k, v, "", "", "", n', ", int64[2] n") if lengths else ("q, k, v", "")
    text = f"""{HEADER % 24} g (float[2,4,S,8] q, float[2,2,T,8] k, float[2,2,T,8] v{more}) => (float[2,4,S,8] y)
    {{ [att] y = Attention<is_causal: int = {causal}>({arguments}) }}"""
    feed = {"q": array(2, 4, 3, 8), "k": array(2, 2, 7, 8), "v": array(2, 2, 7, 8)}
    differences(text, "decompose-attention", feed | ({"n": np.array(lengths)} if lengths else {}))


@pytest.mark.newest
def test_attention_of_float16() -> None:
    text = attention(
        f"{FLAT}, {PAST}",
        "float[2,S,16]",
        'q, k, v, "", pk, pv',
        "q_num_heads: int = 2, kv_num_heads: int = 2, is_causal: int = 1",
    )
    feed = {
        "q": array(2, 3, 16),
        "k": array(2, 3, 16),
        "v": array(2, 3, 16),
        "pk": array(2, 2, 4, 8),
        "pv": array(2, 2, 4, 8),
    }
    differences(text.replace("float[", "float16["), "decompose-attention", feed, np.float16)


HEADS_OF_MICROSOFT: dict[str, tuple[str, str, dict[str, Array]]] = {
    "plain": ('q, k, v, "", "", "", pk, pv', "", {}),
    "later keys": ('q, k, v, "", "", "", pk, pv', ", unidirectional: int = 1", {}),
    "padding": ('q, k, v, "", m, "", pk, pv', "", {"int32[2,T] m": PADDING}),
    "everything": (
        "q, k, v, p, m, s, pk, pv",
        ", unidirectional: int = 1, scale: float = 0.3",
        {"int32[2,T] m": PADDING, "float[1,2,S,T] s": array(1, 2, 3, 7), "float[48] p": array(48)},
    ),
}


@pytest.mark.parametrize("passes", ["decompose-multi-head-attention", "expose-kv-cache"])
@pytest.mark.parametrize("name", HEADS_OF_MICROSOFT)
def test_multi_head_attention(name: str, passes: str) -> None:
    arguments, options, more = HEADS_OF_MICROSOFT[name]
    text = f"""<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    g ({", ".join([FLAT, PAST, *more])}) => (float[2,S,16] y, {PRESENT})
    {{ [mha] y, a, b = com.microsoft.MultiHeadAttention<num_heads: int = 2{options}>({arguments}) }}"""
    feed = {
        "q": array(2, 3, 16),
        "k": array(2, 3, 16),
        "v": array(2, 3, 16),
        "pk": array(2, 2, 4, 8),
        "pv": array(2, 2, 4, 8),
    }
    differences(text, passes, {**feed, **{key.split()[1]: value for key, value in more.items()}})


def test_keys_that_are_split_already() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
    g (float[2,S,16] q, float[2,2,T,8] k, float[2,2,T,8] v) => (float[2,S,16] y)
    { [mha] y = com.microsoft.MultiHeadAttention<num_heads: int = 2>(q, k, v) }"""
    differences(
        text, "decompose-multi-head-attention", {"q": array(2, 3, 16), "k": array(2, 2, 7, 8), "v": array(2, 2, 7, 8)}
    )


@pytest.mark.parametrize("call", ['Attention<q_num_heads: int = 2, kv_num_heads: int = 2, is_causal: int = 1>(q, k, v, "", pk, pv)',
                                  'com.microsoft.MultiHeadAttention<num_heads: int = 2>(q, k, v, "", "", "", pk, pv)'])  # fmt: skip
def test_the_cache_stands_outside_then(call: str) -> None:
    """A decoder's cache is found at Concats, and its outputs keep their names."""
    decoder = model(f"""{HEADER % 23}
    g (int64[2,S] ids, {PAST}) => (float[2,S,16] logits, {PRESENT}) <float[3,16] table = {{{",".join(["1"] * 48)}}}>
    {{ [emb] q = Gather(table, ids) [turn] k = Neg(q) [more] v = Abs(q) [att] logits, a, b = {call} }}""")
    run_pipeline(decoder, "expose-kv-cache")
    pairs = decoder_io(decoder).pairs
    assert [(pair.past.name, pair.present.name, pair.update.op_type) for pair in pairs] == [
        ("pk", "a", "Concat"),
        ("pv", "b", "Concat"),
    ]


def test_a_mask_of_all_layers_is_made_once() -> None:
    layers = " ".join(
        f'[att{i}] y{i}, a{i}, b{i} = Attention<is_causal: int = 1>({"q" if i == 0 else f"y{i - 1}"}, k, v, "", pk, pv)'
        for i in range(3)
    )
    presents = ", ".join(f"float[2,2,T,8] {part}{i}" for i in range(3) for part in "ab")
    text = (
        f"{HEADER % 23} g ({HEADS.replace('[2,4', '[2,2')}, {PAST}) => (float[2,2,S,8] y2, {presents}) {{ {layers} }}"
    )
    decoder = model(text)
    run_pipeline(decoder, "expose-kv-cache", hooks=[VerifyEach()])
    assert [node.op_type for node in decoder.graph].count("LessOrEqual") == 1
