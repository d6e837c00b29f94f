"""Texts, infinite attributes and the types without arithmetic go through the commands: left alone, or on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from qdq_passes.numerics.encoding import Encoding
from qdq_passes.numerics.missing import tensor_of

from tests.cases.cli_helpers import cli, write

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'
MODELS = {
    "stored": HEAD + '''g (float[1,4] x) => (float[1,4] y, string[2] z)
        { [r] y = Relu(x) k = Constant <value_strings: strings = ["a", "é"]>() [i] z = Identity(k) }''',
    "one": HEAD + '''g (float[1,4] x) => (float[1,4] y, string z)
        { [r] y = Relu(x) k = Constant <value_string: string = "a">() [i] z = Identity(k) }''',
    "read": HEAD + "g (string[4] x) => (string[4] y) { [n] y = StringConcat(x, x) }",
    "infinite": HEAD + "g (float[1,4] x) => (float[1,4] y) { [l] y = LeakyRelu <alpha: float = inf>(x) }",
}  # fmt: skip


@pytest.mark.parametrize("name", ["stored", "one"])
@pytest.mark.parametrize("command", ["quantize", "sensitivity"])
def test_texts_stay_beside_what_is_quantized(name: str, command: str, tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", MODELS[name])
    cli(command, model, "--data", "random:1", "-o", tmp_path / "o")
    if command == "quantize":
        made = onnx.load(tmp_path / "o")
        texts = [list(t.string_data) for t in made.graph.initializer if t.string_data]
        texts += [list(a.t.string_data or a.strings or [a.s]) for n in made.graph.node for a in n.attribute
                  if n.op_type == "Constant"]  # fmt: skip
        assert texts == [[b"a", "é".encode()] if name == "stored" else [b"a"]]


@pytest.mark.parametrize("name", ["stored", "one", "read"])
def test_texts_run_on_the_cpu(name: str, tmp_path: Path) -> None:
    done = cli("simulate", write(tmp_path / "m.onnx", MODELS[name]), "--target", "generic_int8", "--data", "random:1")
    assert "nothing runs on the NPU" in done.out


def test_a_sequence_is_compared_and_written_nowhere(tmp_path: Path) -> None:
    text = (
        HEAD
        + "g (float[1,4] x) => (float[1,4] y, seq(float[1,2]) s) { [p] s = SplitToSequence <axis = 1>(x) [r] y = Relu(x) }"
    )
    model, out = write(tmp_path / "m.onnx", text), tmp_path / "o.npz"
    cli("simulate", model, "--target", "generic_int8", "--data", "random:1", "-o", out)
    assert np.load(out).files == ["y"]


@pytest.mark.parametrize("count", [1, 5000])
def test_encodings_with_the_same_nan_are_equal(count: int) -> None:
    one, same, other = (
        Encoding(
            dtype=ir.DataType.FLOAT8E5M2,
            scale=(0.5,) * count,
            zero_point=(float(zero),) * count,
            shape=(count,),
            axis=0,
        )
        for zero in ("nan", "nan", "0")
    )
    assert one == same != other


def test_an_infinite_slope_is_none_of_the_dpu(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", MODELS["infinite"])
    cli("qdq", "remove", "--all", model, "-o", tmp_path / "o.onnx")
    cli("opt", model, "-p", "round-leaky-relu", "-o", tmp_path / "p.onnx")
    for name in ("o.onnx", "p.onnx"):
        assert onnx.load(tmp_path / name).graph.node[0].attribute[0].f == float("inf")


def test_a_tensor_of_texts_holds_bytes() -> None:
    for array in (
        np.array([["a"], ["é"]]),
        np.array([["a"], ["é"]], object),
        np.array([[b"a"], ["é".encode()]], object),
    ):
        proto = ir.serde.serialize_tensor(tensor_of(array, "t"))
        assert (list(proto.dims), list(proto.string_data)) == ([2, 1], [b"a", "é".encode()])
