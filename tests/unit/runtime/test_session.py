"""Sessions and taps: what runs, and what onnxruntime's refusals become."""

from __future__ import annotations

import subprocess
import sys
import weakref
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from qdq_passes.errors import ModelError, QdqError, UnsupportedError, UsageError

from qdqtool.io.models.load import load
from qdqtool.io.models.save import save
from qdqtool.runtime import model_bytes, refusals
from qdqtool.runtime.bound import Bound, Buffer
from qdqtool.runtime.refusals import VersionError, one_line
from qdqtool.runtime.session import load_check, open_session, version
from qdqtool.runtime.taps import Taps, float_tensors
from tests.cases.small_models import model
from tests.golden_messages.refusal import refusal

CHAIN = "g (float[N,3] x) => (float[N,3] y) { a = Relu(x)  i = Shape(a)  b = Neg(a)  y = Add(a, b) }"
X = np.array([[1, -2, 3]], np.float32)


def test_a_session_says_what_it_takes_and_gives() -> None:
    session = open_session(model(CHAIN), extra_outputs=["b", "y"])
    assert session.input_names == ("x",)
    assert session.input_shapes == {"x": ("N", 3)}
    assert session.input_dtypes == {"x": np.float32}
    assert session.output_names == ("y", "b")
    assert session.run({"x": X})["b"].tolist() == [[-1, 0, -3]]
    assert list(session.run({"x": X}, ["b"])) == ["b"]


def test_what_is_lent_equals_what_is_given_and_is_not_copied() -> None:
    taps = Taps(model(CHAIN), ["x", "a", "b", "y"])
    lent, given = taps.lend({"x": X}), taps.run({"x": X})
    assert {name: array.tolist() for name, array in lent.items()} == {name: a.tolist() for name, a in given.items()}
    assert lent["x"] is X
    assert not any(lent[name].flags.writeable or lent[name].flags.owndata for name in "aby")


def test_what_is_lent_stays_while_it_is_held() -> None:
    """Neither the next run nor the end of the session takes its memory."""
    taps = Taps(model(CHAIN), ["b"])
    held = [taps.lend({"x": np.full((1000, 3), i, np.float32)})["b"] for i in range(20)]
    taps.session.close()
    assert [(array.min(), array.max()) for array in held] == [(-i, -i) for i in range(20)]


def test_an_input_that_is_an_output_and_an_empty_value_are_lent_as_copies() -> None:
    session = open_session(model("g (float[N,3] x) => (float[N,3] x) { y = Relu(x) }"), extra_outputs=["y"])
    x = np.zeros((0, 3), np.float32)
    lent = session.lend({"x": x}, ["x", "y"])
    assert lent["x"] is not x
    assert (lent["x"].shape, lent["y"].shape, lent["y"].dtype) == ((0, 3), (0, 3), np.float32)


def test_a_feed_that_does_not_fit_is_refused_where_values_are_lent() -> None:
    with refusal(UsageError):
        Taps(model(CHAIN), ["b"]).lend({"x": X.astype(np.float64)})


def test_the_model_is_left_as_it_is() -> None:
    chain = model(CHAIN)
    before = ir.to_proto(chain).SerializeToString()
    Taps(chain, ["b"]).run({"x": X})
    assert ir.to_proto(chain).SerializeToString() == before


@pytest.mark.parametrize(
    "feed",
    [{}, {"x": X, "z": X}, {"x": X[:, :2]}, {"x": X[0]}, {"x": X.astype(np.float64)}],
    ids=["empty", "too much", "shape", "rank", "type"],
)
def test_a_bad_feed_is_named(feed: dict[str, np.ndarray]) -> None:
    with refusal(UsageError):
        open_session(model(CHAIN)).run(feed)


def test_an_unknown_output_is_named() -> None:
    with refusal(UsageError):
        open_session(model(CHAIN)).run({"x": X}, ["q"])


@pytest.mark.parametrize(
    ("text", "kind", "where", "says"),
    [
        ("g (float[2] x) => (float[2] y) { [n1] y = Foo(x) }", UnsupportedError, "n1", "no operator Foo"),
        (
            "g (float[2] x) => (float[2] y) { [n1] y = com.acme.Bar(x) }",
            UnsupportedError,
            None,
            "no operator com.acme:Bar",
        ),
        ("g (bfloat16[2] x) => (bfloat16[2] y) { [n1] y = Relu(x) }", UnsupportedError, "n1", "no kernel Relu"),
        ("g (float[2] x) => (int64[2] y) { [n1] y = Relu(x) }", ModelError, None, "Type Error"),
        (
            '<ir_version: 99, opset_import: ["" : 21]> g (float[2] x) => (float[2] y) { y = Relu(x) }',
            VersionError,
            None,
            "99",
        ),
    ],
)
def test_a_refused_model_is_one_line(text: str, kind: type[QdqError], where: str | None, says: str) -> None:
    refused = model(text)
    with pytest.raises(kind) as caught:
        open_session(refused)
    assert caught.value.where == where
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "onnxruntime_src" not in str(caught.value)
    assert load_check(refused) == str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "Could not find an implementation for Relu(14) node with name 'n1'",
            "n1: onnxruntime 1.32.0 has no kernel Relu(14) for these types; replace the node, or",
        ),
        (
            "Could not find an implementation for QuantizeLinear(28) node with name 'n1'",
            "has no kernel QuantizeLinear(28) for these types; lower the opset with `qdqtool convert-opset`, replace the node,",
        ),
        (
            "Failed to find kernel for QuantizeLinear(28) (node:'n1' ep:'CPUExecutionProvider'). Op with name (n1) domain ()",
            "n1: onnxruntime 1.32.0 has no kernel QuantizeLinear(28) for these types; lower the opset",
        ),
    ],
)
def test_a_missing_kernel_of_a_new_opset_says_to_lower_it(text: str, says: str) -> None:
    refused = refusals.refusal(f"[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : {text}", version="1.32.0")
    assert (type(refused), refused.where) == (UnsupportedError, "n1")
    assert says in str(refused)


def test_a_good_model_passes_the_load_check() -> None:
    assert load_check(model(CHAIN)) is None
    assert version().count(".") == 2


def test_a_failing_node_is_named() -> None:
    session = open_session(model("g (float[2,3] x, int64[2] s) => (float y) { [resh] y = Reshape(x, s) }"))
    with pytest.raises(ModelError) as caught:
        session.run({"x": np.zeros((2, 3), np.float32), "s": np.array([4, 4])})
    assert caught.value.where == "resh"
    assert "onnxruntime_src" not in str(caught.value)
    assert "{2,3}" in str(caught.value)


def test_one_line_drops_prefix_and_source() -> None:
    text = "[ONNXRuntimeError] : 1 : FAIL : /onnxruntime_src/a/b.cc:5 void f(int)  this\nfailed"
    assert one_line(text) == "this failed"


def test_types_without_numpy_form_go_in_and_out() -> None:
    session = open_session(model("g (float[2,2] x, bfloat16[2] z) => (bfloat16[2,2] y, bfloat16[2] w, float8e4m3fn[2,2] f)"
                                 "{ y = Cast<to=16>(x) w = Identity(z) f = Cast<to=17>(x) }"))  # fmt: skip
    x, z = np.array([[1, 2], [3, 1.5]], np.float32), np.array([1.5, -2], ml_dtypes.bfloat16)
    out = session.run({"x": x, "z": z})
    assert out["y"].dtype == ml_dtypes.bfloat16
    assert out["y"].astype(np.float32).tolist() == x.tolist()
    assert out["w"].tolist() == z.tolist()
    assert out["f"].astype(np.float32).tolist() == x.tolist()


def test_strings_pass() -> None:
    session = open_session(model("g (string[N] x) => (string[N] y) { y = Identity(x) }"))
    assert session.run({"x": np.array(["a", "bc"], object)})["y"].tolist() == ["a", "bc"]


def test_an_input_of_unknown_rank_takes_any() -> None:
    session = open_session(model("g (float[] x) => (float[] y) { y = Neg(x) }"))
    for x in (X, X[0], np.float32(3)):
        assert session.run({"x": x})["y"].tolist() == (-x).tolist()


MATMUL = "g (float[2,3] x) => (float[2,5] y) <float[3,5] w = {0,1,2,3,4,5,6,7,8,9,10,11,12,13,14}> { y = MatMul(x, w) }"


def test_external_data_is_found_wherever_the_process_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    w = np.arange(15, dtype=np.float32).reshape(3, 5)
    (tmp_path / "w.bin").write_bytes(b"skip" + w.tobytes())
    external = model(MATMUL)
    external.graph.initializers["w"].const_value = ir.ExternalTensor(
        "w.bin", 4, 60, ir.DataType.FLOAT, shape=ir.Shape((3, 5)), name="w", base_dir=tmp_path
    )
    monkeypatch.chdir("/")
    x = np.ones((2, 3), np.float32)
    assert np.array_equal(open_session(external).run({"x": x})["y"], x @ w)


def test_weights_beyond_protobuf_are_handed_over_as_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_bytes, "INLINE_LIMIT", 16)
    monkeypatch.setattr(model_bytes, "SMALL", 8)
    multiply = model(MATMUL)
    source = model_bytes.model_bytes(multiply)
    assert list(source.arrays) == ["w"]
    assert source.folder is None
    x = np.ones((2, 3), np.float32)
    assert open_session(multiply).run({"x": x})["y"][0].tolist() == [15, 18, 21, 24, 27]
    assert not isinstance(multiply.graph.initializers["w"].const_value, ir.ExternalTensor)


def test_arrays_live_as_long_as_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_bytes, "INLINE_LIMIT", 16)
    size = 1 << 20
    add = model(f"g (float[{size}] x) => (float[{size}] y) <float[1] w = {{0}}> {{ y = Add(x, w) }}")
    weight = add.graph.initializers["w"]
    weight.const_value, weight.shape = ir.tensor(np.full(size, 3, np.float32), name="w"), ir.Shape((size,))
    session = open_session(add)
    weight.const_value = None  # nobody else holds the array now
    others = [np.full(size, 7, np.float32) for _ in range(4)]  # would come to lie in its place
    assert np.all(session.run({"x": np.zeros(size, np.float32)})["y"] == 3), len(others)


def test_arrays_and_data_files_go_together_in_a_graph_out_of_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_bytes, "INLINE_LIMIT", 4)
    monkeypatch.setattr(model_bytes, "SMALL", 8)
    mixed = model("""g (float[2] x) => (float[2] y)
        <float[2] a = {1, 2}, float[2] b = {3, 4}, float[2] c = {5, 6}> { y = Add(t, c)  t = Add(s, b)  s = Mul(x, a) }""")
    stored = {"a": np.array([1, 2], np.float32), "c": np.array([5, 6], np.float32)}
    for name, array in stored.items():  # two folders: the session is opened from the one above
        (tmp_path / name).mkdir()
        (tmp_path / name / "w.bin").write_bytes(array.tobytes())
        mixed.graph.initializers[name].const_value = ir.ExternalTensor(
            "w.bin", 0, 8, ir.DataType.FLOAT, shape=ir.Shape((2,)), name=name, base_dir=tmp_path / name
        )
    assert list(model_bytes.model_bytes(mixed).arrays) == ["b"]
    assert [node.op_type for node in mixed.graph] == ["Add", "Add", "Mul"]
    assert open_session(mixed).run({"x": np.array([1, 1], np.float32)})["y"].tolist() == [9, 12]


def test_closing_lets_go_of_the_session_though_somebody_holds_it() -> None:
    session = open_session(model(CHAIN))
    handle = weakref.ref(session._handle)
    session.close()
    assert handle() is None


def test_a_file_opens_too(tmp_path: Path) -> None:
    save(model(CHAIN), tmp_path / "m.onnx")
    assert open_session(tmp_path / "m.onnx").run({"x": X})["y"].tolist() == [[0, 0, 0]]
    assert float_tensors(load(tmp_path / "m.onnx")) == ["x", "a", "b", "y"]


def test_float_tensors_ask_onnxruntime_where_types_are_missing() -> None:
    chain = model(CHAIN)
    assert next(iter(chain.graph)).outputs[0].type is None
    assert float_tensors(chain) == ["x", "a", "b", "y"]


def test_taps_give_inputs_and_inner_values_in_the_order_asked() -> None:
    taps = Taps(model(CHAIN), ["b", "x", "b"])
    found = [taps.run(feed) for feed in ({"x": X}, {"x": 2 * X})]
    assert [list(f) for f in found] == [["b", "x"], ["b", "x"]]
    assert found[1]["b"].tolist() == [[-2, 0, -6]]


def test_taps_give_defaults_of_inputs_and_whatever_is_an_output() -> None:
    taps = Taps(model("""g (float[2] x, float[2] d) => (float[2] y, float[2] w, float[2] c, float[2] x)
        <float[2] w = {1, 2}, float[2] d = {3, 4}> {
          c = Constant<value = float[2] {5, 6}>()  t = Add(x, w)  y = Add(t, d) }"""), ["d", "y", "w", "c", "x"])  # fmt: skip
    found = taps.run({"x": np.ones(2, np.float32)})
    assert {name: array.tolist() for name, array in found.items()} == {
        "d": [3, 4], "y": [5, 7], "w": [1, 2], "c": [5, 6], "x": [1, 1],
    }  # fmt: skip


def test_taps_refuse_what_is_not_in_the_main_graph() -> None:
    with refusal(UsageError):
        Taps(model(CHAIN), ["aa"])


def test_onnxruntime_is_imported_by_sessions_only() -> None:
    ours = ("runtime.taps", "runtime.hooks", "io.feeds", "calibrate.collect", "comparison.cumulative")
    code = f"""
import sys, {", ".join("qdqtool." + name for name in ours)}
executed = {{name for name, module in sys.modules.items() if type(module).__name__ == "module"}}
sys.exit(" ".join(sorted({{"onnxruntime", "PIL", "sympy"}} & executed)) or None)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


#: A scale for all of y, of rank 0.
DYNAMIC = """<ir_version: 10, opset_import: ["" : 21]>
g (float[4] x) => (uint8[4] y, float[] scale, uint8[] zero) { y, scale, zero = DynamicQuantizeLinear(x) }"""


def test_a_scalar_has_a_buffer_of_rank_0() -> None:
    session = open_session(model(DYNAMIC))
    buffers = {
        "x": Buffer(np.array([0.0, 1.0, 2.0, 255.0], np.float32)), "y": Buffer(np.zeros(4, np.uint8)),
        "scale": Buffer(np.zeros((), np.float32)), "zero": Buffer(np.ones((), np.uint8)),
    }  # fmt: skip
    Bound(session, buffers, buffers).run()
    assert (buffers["scale"].array.item(), buffers["zero"].array.item()) == (1.0, 0)
    assert buffers["y"].array.tolist() == [0, 1, 2, 255]
