"""`check` and `diff`: exit 1 when they find something, and words that a person can act on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cases.cli_helpers import CALIB, DIGITS, SAMPLES, cli, write
from tests.golden_messages.refusal import told

#: What every onnxruntime-genai file holds: an operator of onnxruntime in the default domain.
CONTRIB = """
    g (float[N,8] x) => (float[N,8] y) <float[8] w = {1, 1, 1, 1, 1, 1, 1, 1}> {
      [norm] y = SimplifiedLayerNormalization<axis: int = -1, epsilon: float = 0.00001>(x, w)
    }"""
NEGATIVE = """
    g (float[N,8] x) => (float[N,8] y) <float s = {-0.1}, int8 z = {0}> {
      [q] a = QuantizeLinear(x, s, z)  [d] y = DequantizeLinear(a, s, z)
    }"""


#: The layout of another tool, whose nodes stand out of order.
UNSORTED = SAMPLES / "quark_layout.onnx"


@pytest.mark.parametrize("path", [DIGITS, *sorted({*SAMPLES.glob("*.onnx")} - {UNSORTED})], ids=lambda p: Path(p).stem)
def test_our_models_are_clean(path: Path) -> None:
    assert cli("check", path).out.splitlines()[0] == "no findings"


def test_a_finding(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", NEGATIVE)
    found = cli("check", model, "--json", code=1).json
    assert found["findings"][0] == {
        "level": "error",
        "rule": "qdq-scale",
        "where": "q",
        "message": "has the scale -0.1",
        "hint": "scales must be positive and finite: calibrate again",
    }
    assert cli("check", model, code=1).out.splitlines() == [
        "error    qdq-scale  q: has the scale -0.1; scales must be positive and finite: calibrate again",
        "error    qdq-scale  d: has the scale -0.1; scales must be positive and finite: calibrate again",
        "IR 10, opset 21: onnxruntime that reads it: >=1.23",
    ]


def test_an_operator_of_onnxruntime_is_a_note(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", CONTRIB)
    (found,) = cli("check", model, "--json").json["findings"]
    assert (found["level"], found["rule"], found["where"]) == ("note", "known-operators", "norm")


def test_an_operator_of_nobody_is_an_error(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", "g (float[2] x) => (float[2] y) { [n] y = Reluu(x) }")
    findings = cli("check", model, "--json", code=1).json["findings"]
    assert [(f["level"], f["rule"]) for f in findings] == [
        ("warning", "known-operators"), ("error", "onnx-checker"), ("error", "onnxruntime-load"),
    ]  # fmt: skip
    assert [f["where"] for f in findings] == ["n", "model", "n"]
    assert "has no operator Reluu" in findings[2]["message"]
    cli("check", model, "--no-runtime", code=1)


def test_the_worst_warnings_are_shown_and_every_error(tmp_path: Path) -> None:
    chain = " ".join(f"[n{i}] v{i + 1} = Reluu{i}(v{i})" for i in range(8))
    model = write(tmp_path / "m.onnx", f"g (float[2] v0) => (float[2] v8) {{ {chain} }}")
    shown, whole = cli("check", model, code=1).out.splitlines(), cli("check", model, "-v", code=1).out.splitlines()
    kinds = [line.split()[0] for line in shown[:-1]]
    assert kinds == ["warning"] * 5 + ["error"] * 2 + ["…"]
    assert shown[-2] == "… and 3 more warnings: -v"
    assert [line.split()[0] for line in whole[:-1]] == ["warning"] * 8 + ["error"] * 2
    assert len(cli("check", model, "--json", code=1).json["findings"]) == 10


#: An int32 bias at twice s_x·s_w, a trap everywhere; and a Softmax in int8 around 0, a trap of some chips.
TRAPS = """
    g (float[1,2] x) => (float[1,2] y)
    <float s = {0.5}, int8 z = {0}, int8[2,2] w = {1, 2, 3, 4}, int32[2] b = {5, 6}, float bs = {0.5}> {
      [q] i = QuantizeLinear(x, s, z)  [d] f = DequantizeLinear(i, s, z)  [dw] v = DequantizeLinear(w, s, z)
      [db] c = DequantizeLinear(b, bs)  [gemm] t = Gemm(f, v, c)  [soft] u = Softmax(t)
      [q2] j = QuantizeLinear(u, s, z)  [d2] y = DequantizeLinear(j, s, z)
    }"""
CHIP = """
description = "a chip that shifts its Softmax"
version = "1"
traps = ["softmax-symmetric-output", "clip-after-pair"]
[[op]]
types = ["Gemm"]
scheme = [{activations = ["int8"]}]
"""


def test_traps_of_every_backend_and_of_a_target(tmp_path: Path) -> None:
    """Warnings: they change no exit code. Those of a chip are looked for only when it is named, by file or by name."""
    model = write(tmp_path / "m.onnx", TRAPS)
    (tmp_path / "targets").mkdir()
    (tmp_path / "targets" / "chip.toml").write_text(CHIP)
    (found,) = cli("check", model, "--json").json["findings"]
    assert (found["level"], found["rule"], found["where"]) == ("warning", "bias-scale", "gemm")
    assert set(found) == {"level", "rule", "where", "message", "hint"}
    for target in (("--target", tmp_path / "targets" / "chip.toml"), ("--path", tmp_path, "--target", "chip")):
        payload = cli("check", model, "--json", *target).json
        rules = [f["rule"] for f in payload["findings"]]
        assert rules == [
            "bias-scale",
            "softmax-symmetric-output",
            "placement",
            "placement",
        ]  # Gemm and Softmax have no pair between
        assert (payload["errors"], payload["target"]) == (0, "chip")
    shown = cli("check", model, "--target", tmp_path / "targets" / "chip.toml").out
    assert re.search(r"placement +gemm: Gemm on the CPU: ", shown)
    assert "warning  softmax-symmetric-output  soft: writes int8 with zero point 0" in shown
    general = cli("check", model, "--json", "--target", "generic_int8").json["findings"]
    assert [f for f in general if f["rule"] != "placement"] == [found]
    text = cli("--path", tmp_path, "list", "targets", "chip").out
    assert "traps: softmax-symmetric-output, clip-after-pair" in text


def test_a_target_that_is_none(tmp_path: Path) -> None:
    """Refused before the model is read."""
    done = cli("check", tmp_path / "no.onnx", "--target", "generic_int", code=2)
    told(done.error)
    (tmp_path / "chip.toml").write_text(CHIP.replace("clip-after", "clip-before"))
    done = cli("check", tmp_path / "no.onnx", "--target", tmp_path / "chip.toml", code=2)
    told(done.error)


def test_a_version_that_onnxruntime_does_not_read(tmp_path: Path) -> None:
    model = write(
        tmp_path / "m.onnx", '<ir_version: 14, opset_import: ["" : 28]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    )
    done = cli("check", model, code=None)
    assert done.out.splitlines()[-1] == "IR 14, opset 28: onnxruntime that reads it: >=1.32"


def test_baseline(tmp_path: Path) -> None:
    """Only what is worse than the stored report counts; the report fits the model wherever it lies."""
    model, report = write(tmp_path / "m.onnx", NEGATIVE), tmp_path / "report.json"
    cli("check", model, "--json-out", report, code=1)
    moved = write(tmp_path / "moved.onnx", NEGATIVE)
    done = cli("check", moved, "--baseline", report)
    assert "2 errors known from the baseline, 0 new" in done.out
    worse = write(tmp_path / "worse.onnx", NEGATIVE.replace("[d]", "[e] c = DequantizeLinear(a, s, z) [d]"))
    found = cli("check", worse, "--baseline", report, "--json", code=1).json
    assert (found["errors"], found["known_errors"]) == (1, 2)
    cli("check", DIGITS, "--baseline", report)


def test_a_baseline_that_is_none(tmp_path: Path) -> None:
    told(cli("check", DIGITS, "--baseline", tmp_path / "no.json", code=2).error)
    for text in ("[]", "{}", '{"findings": [{"rule": 1}]}', "nonsense"):
        (tmp_path / "b.json").write_text(text)
        told(cli("check", DIGITS, "--baseline", tmp_path / "b.json", code=2).error)


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("diff") / "q.onnx"
    cli("quantize", DIGITS, "--data", CALIB, "--samples", "8", "-o", path)
    return str(path)


def test_equal_models() -> None:
    assert cli("diff", DIGITS, DIGITS).out == "no differences\n"
    assert cli("diff", DIGITS, DIGITS, "--json").json["differences"] == []


def test_a_quantized_model_against_its_source(quantized: str) -> None:
    lines = cli("diff", DIGITS, quantized, code=1).out.splitlines()
    row = next(line for line in lines if line.startswith("encoding     logits "))
    assert row.split("  ")[-1].strip() == "int8 scale 2^-4, activation, pair"
    assert not [line for line in lines if "{" in line]
    assert "node         /stem/bn" in "\n".join(lines)
    differences = cli("diff", DIGITS, quantized, "--json", code=1).json["differences"]
    assert lines[-1] == f"{len(differences)} differences"
    assert {"kind", "where", "a", "b"} == set(differences[0])


def test_one_scale_changed(tmp_path: Path) -> None:
    one = ("qdq", "insert", DIGITS, "--select", "tensor:logits")
    cli(*one, "--scale", "0.5", "-o", tmp_path / "a.onnx")
    cli(*one, "--scale", "0.3", "--zero-point", "2", "-o", tmp_path / "b.onnx")
    done = cli("diff", tmp_path / "a.onnx", tmp_path / "b.onnx", code=1)
    assert done.out.splitlines() == [
        "kind      where   a                                  b",
        "encoding  logits  int8 scale 2^-1, activation, pair  int8 scale 0.3, zero point 2, activation, pair",
        "1 difference",
    ]


def test_scales_of_an_axis_in_words(tmp_path: Path) -> None:
    scales = [word for i in range(10) for word in ("--scale", str(0.5 if i else 0.125))]
    cli("qdq", "insert", DIGITS, "--select", "tensor:head.fc.weight", *scales, "--axis", "0", "-o", tmp_path / "a.onnx")
    (row,) = [x for x in cli("diff", DIGITS, tmp_path / "a.onnx", code=1).out.splitlines() if x.startswith("encoding")]
    assert row.endswith("int8 scale 2^-3..2^-1 (10 on axis 0), weight, pair")


def test_attributes_weights_and_wiring(tmp_path: Path) -> None:
    a = write(tmp_path / "a.onnx", """
        g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {1, 2, 3, 4}> { [m] t = MatMul(x, w) [l] y = LeakyRelu<alpha = 0.5>(t) }
        """)  # fmt: skip
    b = write(tmp_path / "b.onnx", """
        g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {1, 2, 3, 5}> { [m] t = MatMul(w, x) [l] y = LeakyRelu<alpha = 0.25>(t) }
        """)  # fmt: skip
    found = {d["kind"]: d for d in cli("diff", a, b, "--json", code=1).json["differences"]}
    assert set(found) == {"wiring", "attribute", "initializer"}
    assert (found["attribute"]["where"], found["attribute"]["a"], found["attribute"]["b"]) == ("l.alpha", 0.5, 0.25)
    assert found["initializer"]["b"] == "float[2, 2] [[1.0, 2.0], [3.0, 5.0]]"
    assert "[x, w]" in cli("diff", a, b, code=1).out


def test_a_difference_inside_a_body_is_found(tmp_path: Path) -> None:
    cli("rename", SAMPLES / "if_branch.onnx", "--value", "input=x", "-o", tmp_path / "r.onnx")
    kinds = {
        d["kind"]
        for d in json.loads(cli("diff", SAMPLES / "if_branch.onnx", tmp_path / "r.onnx", "--json", code=1).out)[
            "differences"
        ]
    }
    assert kinds == {"input", "wiring"}
