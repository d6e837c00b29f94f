"""`quantize --extra-options`: what is refused, what is listed, and that Python and the command line do the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import qdqtool
from tests.cases.cli_helpers import CALIB, DIGITS, cli, write
from tests.golden_messages.refusal import told


def test_extra_options_are_refused_with_their_reason(tmp_path: Path) -> None:
    """Unknown and contradictory: 2; known without an equivalent: 3. Nothing is written."""
    for text, code in [
        ("per_chanel=true", 2),
        ("per_channel=true", 2),
        ("Percentile=99.9", 2),
        ("ActivationSymmetric=false", 2),
        ("SmoothQuant=true", 3),
        ("nodes_to_exclude=nobody", 2),
        ('TensorQuantOverrides={"nobody": [{"quant_type": "QInt16"}]}', 2),
        (
            'TensorQuantOverrides={"input": {"convert": {"quant_type": "QInt16", "recv_nodes": ["/stem"]}}}',
            2,
        ),
    ]:
        for more in (["--print-pipeline"], ["--data", "random:1", "-o", tmp_path / "q.onnx"]):
            told(cli("quantize", DIGITS, "--extra-options", text, *more, code=code).error)
    assert not list(tmp_path.iterdir())


def test_extra_options_in_python_are_those_of_the_command(tmp_path: Path) -> None:
    cli(
        "quantize", DIGITS, "--data", CALIB, "--samples", "4", "--extra-options", "op_types_to_quantize=Conv,Gemm",
        "--extra-options", "Int32Bias=1", "-o", tmp_path / "a.onnx",
    )  # fmt: skip
    options = {"op_types_to_quantize": ["Conv", "Gemm"], "Int32Bias": True}
    done = qdqtool.quantize(DIGITS, tmp_path / "b.onnx", data=CALIB, samples=4, extra_options=options)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert "bias=int32" in done.to_json()["pipeline"]


def test_a_tensor_that_is_folded_away_cannot_be_overridden(tmp_path: Path) -> None:
    model = write(
        tmp_path / "m.onnx",
        """g (float[1,1,2,2] x) => (float[1,1,2,2] y) <float[1,1,1,1] w = {2}, float[1] s = {1}, float[1] v = {1}> {
          [conv] t = Conv(x, w)  [bn] y = BatchNormalization(t, s, s, s, v) }""",
    )
    options = ("--extra-options", 'TensorQuantOverrides={"s": {"quant_type": "QInt16"}}', "-o", tmp_path / "q.onnx")
    done = cli("quantize", model, "--data", "random:1", *options, code=2)
    told(done.error)


def test_no_data_is_needed_where_every_range_is_said(tmp_path: Path) -> None:
    """Ranges that are overridden are not looked for, even where calibration would find infinities."""
    model = write(tmp_path / "m.onnx", "g (float[2] x) => (float[2] y) { [log] t = Log(x) [relu] y = Relu(t) }")
    said = '{"t": {"rmin": -4, "rmax": 0}, "y": {"scale": 0.5, "zero_point": 0}}'
    options = ("--extra-options", f"TensorQuantOverrides={said}", "--no-fuse-layers")
    done = cli("quantize", model, *options, "-o", tmp_path / "q.onnx", "--json").json
    assert (done["samples"], done["pairs"]) == (0, 2)
    np.savez(tmp_path / "d.npz", x=np.zeros((1, 2), np.float32))
    done = cli("quantize", model, *options, "--data", tmp_path / "d.npz", "-o", tmp_path / "p.onnx", "--json").json
    assert done["pairs"] == 2
    assert [(p["tensor"], p["scale"]) for p in cli("qdq", "list", tmp_path / "p.onnx", "--json").json["pairs"]] == [
        ("t", 2.0**-4), ("y", 0.5)
    ]  # fmt: skip


def test_what_the_options_leave_float_is_listed(tmp_path: Path) -> None:
    """Outputs, biases and nodes, each with its reason."""
    model = write(
        tmp_path / "m.onnx",
        """g (float[1,2] x, float[1,2] z) => (float[1,2] y, float[1,2] u) <float[2,2] w = {1, 2, 3, 4}, float[2] b = {1, 2}> {
          [first] s = Gemm(x, w, b)  [second] t = Gemm(s, w, b)  [turn] u = Transpose<perm = [0, 1]>(z)  [soft] y = Softmax(t) }""",
    )
    given = ["OpTypesToExcludeOutputQuantization=Softmax", "Int32Bias=true", "ForceQuantizeNoInputCheck=false"]
    options = [part for text in given for part in ("--extra-options", text)]
    done = cli("quantize", model, "--data", "random:4", *options, "-o", tmp_path / "q.onnx", "--json").json
    assert done["refused"] == [
        {"tensor": "u", "reason": "turn only moves values, and its input stays float"},
        {"tensor": "y", "reason": "outputs of Softmax stay float"},
        {"tensor": "b", "reason": "is shared by first, second, whose products s_x·s_w differ"},
    ]
    assert done["excluded"] == [{"node": "turn", "reason": "only moves values, and its input stays float"}]
    nothing = (
        "--extra-options",
        "op_types_to_quantize=Transpose",
        "--extra-options",
        "ForceQuantizeNoInputCheck=false",
    )
    told(cli("quantize", model, "--data", "random:1", *nothing, "-o", tmp_path / "n.onnx", code=2).error)
