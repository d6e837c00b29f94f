"""What `analyze` suggests: there always is something, its commands exist, and following them mends what they are about."""

from __future__ import annotations

import contextlib
from importlib.resources import files
from pathlib import Path

import onnx_ir as ir
import pytest
from qdq_passes import run_pipeline
from qdq_passes.errors import UsageError
from qdq_passes.npu.partitions.partitions import partition_for, placements

import qdqtool
from qdqtool.presets import PRESETS
from qdqtool.targets.loading import TARGETS, load_target
from qdqtool.targets.target import Target
from tests.cases.small_models import HEADER, model
from tests.cases.suggested import commands, complaint, follow
from tests.golden_messages.refusal import refusal
from tests.unit.cli.test_cli_edits import llama_feed

SAMPLES = Path(__file__).parents[3] / "sample_models"
MODELS = {
    "digits": Path(str(files("qdqtool") / "_demo" / "digits.onnx")),
    **{p.stem: p for p in sorted(SAMPLES.glob("*.onnx"))},
}
TARGET_NAMES = sorted(TARGETS.names())
#: One of each family: what a member says beside that has a row of its own below.
ROOTS = [chip for name in TARGET_NAMES if (chip := load_target(name)).extends not in TARGET_NAMES]
#: Targets that compute a BatchNormalization in floating point as it stands.
FLOATS = ("apple_ane", "cloud_ai100", "tpu_like")
#: The samples that take long to quantize, without the presets that give every operator the types of another.
LARGE = ("detector", "tiny_llama", "vit_block")
REPEATED = (
    "16a16w-compat", "16a16w-qat", "16a4w-qat", "16a8w-compat", "16a8w-qat", "8a8w-compat", "8a8w-qat", "coreml-8a-c8w-compat",
    "coreml-baseline-8a-c4w", "dynamic-per-token", "vulkan-8w", "w4-g128", "xint8-compat", "xnnpack-dynamic-qc4",
)  # fmt: skip


def wrong(graph: ir.Model, chip: Target) -> list[str]:
    """What is wrong with the suggestions for the nodes of a model; what `analyze` shows, without its advice. Where a target
    computes in floating point anyhow, there is nothing to mend, and no reason."""
    placed = placements(graph, partition_for(graph, chip, simulated=False))
    return [
        f"{node.name} ({node.op_type}) {placement.rule}: {said}: {placement.suggestion!r}"
        for node, placement in placed.items()
        if placement.verdict != "npu-int"
        and (placement.verdict != "npu-float" or placement.reason)
        and (said := complaint(placement.suggestion)) is not None
    ]


@pytest.mark.product(cover=("name",), extra=1)
@pytest.mark.parametrize(
    ("name", "preset"),
    [(n, p) for n in sorted(MODELS) for p in (None, *PRESETS.names()) if n not in LARGE or p not in REPEATED],
)
def test_every_node_of_the_samples_has_a_way_out(name: str, preset: str | None, tmp_path: Path) -> None:
    """As it is in floating point, and quantized by a preset."""
    path = MODELS[name]
    if preset is not None:
        data = [llama_feed()] if name == "tiny_llama" else "random:1"
        with contextlib.suppress(UsageError):  # nothing in it that could be quantized
            qdqtool.quantize(str(path), preset=preset, data=data, output=tmp_path / "q.onnx")
            path = tmp_path / "q.onnx"
    graph = qdqtool.load(path)
    run_pipeline(graph, "sort,inline-functions,give-names,infer-shapes")
    for chip in ROOTS:
        assert wrong(graph, chip) == [], chip.name


def test_a_suggestion_is_looked_at() -> None:
    assert complaint("") == "is empty"
    assert complaint("try harder") == "names no command, and does not say that there is none"
    assert complaint("no pass is known that helps") is None
    assert complaint("`qdqtool qdq convert --dtype int8 --kinds weight`") is None
    assert (
        complaint("`qdqtool qdq convert --kinds weights`")
        == "`qdqtool qdq convert --kinds weights`: --kinds cannot be weights"
    )
    assert (
        complaint("`qdqtool quantize --no-such-option`")
        == "`qdqtool quantize --no-such-option`: there is no option --no-such-option"
    )
    assert complaint("`qdqtool quantize --target chip`") == "`qdqtool quantize --target chip`: there is no target chip"
    with refusal(UsageError):
        complaint("`qdqtool opt -p fold-batchnorm`")


CONSTANTS = """float s = {0.5}, float t = {0.3}, int8 z = {0}, uint8 m = {128}, uint8 n = {129}, int16 h = {0}, uint16 p = {32768}, int16[2,2,1,1] hw = {1,2,3,4}, float[2] ss = {0.5, 0.25},
  int8[2] zz = {0, 0}, int8[2,2,1,1] w = {1,2,3,4}, uint8[2,2,1,1] u = {1,2,3,4}, float[2] fb = {1, 2}, float[2,2,1,1] fw = {1,2,3,4},
  int8[2] b8 = {1, 2}, float[2] one = {1, 1}, float[2] zero = {0, 0}"""
IMAGE = "float[1,2,4,4]"


def layer(
    x: str = "s, z",
    w: str = "<axis=0>(w, s, z)",
    y: str = "s, z",
    conv: str = "[conv] c = Conv(xd, wd)",
    ends: str = "",
    then: str = "",
) -> str:
    """x → pair → Conv → pair → Relu → pair → y, with an encoding each for what flows."""
    return f"""{HEADER}
    g ({IMAGE} x) => ({IMAGE} y{ends}) <{CONSTANTS}> {{
      [qx] xq = QuantizeLinear(x, {x}) [dx] xd = DequantizeLinear(xq, {x}) [dw] wd = DequantizeLinear{w}
      {conv} [qc] cq = QuantizeLinear(c, {y}) [dc] cd = DequantizeLinear(cq, {y})
      [relu] r = Relu(cd) [qr] rq = QuantizeLinear(r, {y}) [dr] y = DequantizeLinear(rq, {y}) {then}
    }}"""


WITHOUT_PAIR = f"""{HEADER}
g ({IMAGE} x) => ({IMAGE} y) <{CONSTANTS}> {{
  [qx] xq = QuantizeLinear(x, s, z) [dx] xd = DequantizeLinear(xq, s, z) [dw] wd = DequantizeLinear(w, s, z)
  [conv] c = Conv(xd, wd) [relu] r = Relu(c) [qr] rq = QuantizeLinear(r, s, z) [dr] y = DequantizeLinear(rq, s, z)
}}"""
MOVED = f"""{HEADER}
g ({IMAGE} x) => (float[1,4,4,2] y) <{CONSTANTS}> {{
  [qx] xq = QuantizeLinear(x, s, z) [dx] xd = DequantizeLinear(xq, s, z)
  [turn] m1 = Transpose<perm=[0,2,3,1]>(xd) [qt] tq = QuantizeLinear(m1, t, z) [dt] y = DequantizeLinear(tq, t, z)
}}"""
QOPERATORS = f"""{HEADER}
g ({IMAGE} x) => ({IMAGE} y) <{CONSTANTS}> {{
  [qx] xq = QuantizeLinear(x, s, z) [conv] yq = QLinearConv(xq, s, z, w, s, z, s, z)
  [pool] pq = MaxPool<kernel_shape=[1,1]>(yq) [dy] y = DequantizeLinear(pq, s, z)
}}"""
BATCH_NORM = f"""{HEADER}
g ({IMAGE} x) => ({IMAGE} y) <{CONSTANTS}> {{ [conv] c = Conv(x, fw) [bn] n1 = BatchNormalization(c, one, fb, zero, one) [relu] y = Relu(n1) }}"""
DYNAMIC = f"""{HEADER}
g ({IMAGE} x) => ({IMAGE} y) <{CONSTANTS}> {{
  [dql] xq, a, b = DynamicQuantizeLinear(x) [dx] xd = DequantizeLinear(xq, a, b) [conv] c = Conv(xd, fw) [relu] y = Relu(c) }}"""


@pytest.mark.parametrize(
    ("text", "target", "node", "told"),
    [
        (layer(w="<axis=0>(w, ss, zz)"), "vitis_xint8", "conv", "--per-tensor --kinds weight"),
        (layer(x="t, z"), "vitis_xint8", "conv", "--round-pow2"),
        (layer(x="s, n", y="s, n"), "vitis_xint8", "conv", "--symmetric --kinds activation"),
        (layer(x="t, n", y="t, n"), "vitis_xint8", "conv", "then `qdqtool qdq set --all --round-pow2`, then `qdqtool opt -p refine-positions`"),
        (layer(x="s, h", y="s, h"), "generic_int8", "conv", "--dtype int8 --kinds activation"),
        (layer(w="(u, s, n)"), "vitis_xint8", "conv", "--symmetric --kinds weight"),
        (layer(x="s, p", w="(hw, s, h)", y="s, p"), "qnn_htp_v68", "conv", "--dtype int8 --symmetric --kinds weight"),
        (layer(w="(u, s, n)"), "generic_int8", "conv", "--dtype int8 --symmetric --kinds weight"),
        (layer(w="(u, s, n)"), "qnn_htp", "conv", "--dtype int8 --symmetric --kinds weight"),
        (layer(conv="[conv] c = Conv(xd, wd, fb)"), "vitis_xint8", "conv", "--bias int8"),
        (layer(conv="bd = DequantizeLinear(b8, s, z) [conv] c = Conv(xd, wd, bd)"), "qnn_htp", "conv", "--bias int32"),
        (layer(ends=f", {IMAGE} c"), "generic_int8", "conv", "or drop that output: `qdqtool extract --outputs y`"),
        (layer(ends=f", {IMAGE} c"), "qnn_htp", "conv", "qdqtool qdq insert --select tensor:c --scale 0.5 --dtype int8"),
        (layer(ends=f", {IMAGE} e", then="[neg] e = Neg(c)"), "vitis_xint8", "conv", "qdqtool qdq remove --select tensor:c"),
        (
            layer(ends=f", {IMAGE} e", then="kq = QuantizeLinear(c, s, z) kd = DequantizeLinear(kq, s, z) [neg] e = Neg(kd)"),
            "generic_int8", "conv", "qdqtool qdq share --select tensor:c",
        ),
        (WITHOUT_PAIR, "qnn_htp", "conv", "qdqtool qdq insert --select tensor:c --scale 0.5 --dtype int8"),
        (MOVED, "qnn_htp", "turn", "qdqtool qdq set --select tensor:m1 --scale 0.5 --dtype int8"),
        (QOPERATORS, "generic_int8", "conv", "qdqtool qdq convert --qoperators"),
        (QOPERATORS, "generic_int8", "pool", "qdqtool qdq convert --qoperators"),
        (DYNAMIC, "generic_int8", "dql", "qdqtool qdq remove --all"),
        (DYNAMIC, "vitis_xint8", "conv", "qdqtool qdq remove --all"),
        (layer().replace("1,2,4,4", "1,2,H,4"), "vitis_xint8", "conv", "qdqtool fix-shapes --dim H=N"),
    ],
)  # fmt: skip
def test_following_a_suggestion_mends_the_node(text: str, target: str, node: str, told: str, tmp_path: Path) -> None:
    file = str(tmp_path / "m.onnx")
    qdqtool.save(model(text), file)
    [before] = [n.placement for n in qdqtool.analyze(file, target=target, trials=False).nodes if n.name == node]
    assert before.verdict != "npu-int"
    assert told in before.suggestion
    assert complaint(before.suggestion) is None
    after = qdqtool.analyze(follow(before.suggestion.replace("=N", "=4"), file, str(tmp_path)), target=target)
    kept = [n for n in after.nodes if n.name == node]
    assert {n.placement.verdict for n in kept or after.nodes if n.is_compute} == {"npu-int"}, after.reasons()


@pytest.mark.parametrize("target", [name for name in TARGET_NAMES if name not in FLOATS])
def test_a_batch_norm_that_is_left_over_is_to_be_folded(target: str, tmp_path: Path) -> None:
    file = str(tmp_path / "m.onnx")
    qdqtool.save(model(BATCH_NORM), file)
    [found] = [n.placement for n in qdqtool.analyze(file, target=target, trials=False).nodes if n.name == "bn"]
    assert found.verdict != "npu-int"
    assert commands(found.suggestion)[0] == "qdqtool opt -p fold-batch-norm"
    folded = qdqtool.load(follow(found.suggestion.split(" (")[0], file, str(tmp_path)))
    assert [node.op_type for node in folded.graph] == ["Conv", "Relu"]


@pytest.mark.parametrize(
    ("op", "told"),
    [
        ("Sin", "no pass is known that replaces this Sin"),
        ("Identity", "`qdqtool opt -p remove-identity`"),
        ("Erf", "fuse-gelu"),
    ],
)
def test_an_operator_without_rule(op: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "bare.toml").write_text(
        'description = "b"\nversion = "1"\n[[op]]\ntypes = ["Relu"]\n[[op.scheme]]\nactivations = ["int8"]\n', "utf-8"
    )
    found = qdqtool.analyze(
        model(layer(then="").replace("[relu] r = Relu(cd)", f"[odd] r = {op}(cd)")),
        target=tmp_path / "bare.toml",
        trials=False,
    )
    [placement] = [n.placement for n in found.nodes if n.name == "odd"]
    assert placement.rule == "no-rule"
    assert told in placement.suggestion


def test_a_small_group_names_what_is_beside_it() -> None:
    found = qdqtool.analyze(model(layer().replace("Relu(cd)", "Neg(cd)")), target="vitis_xint8")
    placed = {n.name: n.placement for n in found.nodes}
    assert placed["conv"].rule == "region"  # Neg stands in one region with it
    text = f"""{HEADER}
    g ({IMAGE} x) => ({IMAGE} y) <{CONSTANTS}> {{
      [qx] xq = QuantizeLinear(x, s, z) [dx] xd = DequantizeLinear(xq, s, z) [relu] r = Relu(xd) [qr] rq = QuantizeLinear(r, s, z)
      [dr] rd = DequantizeLinear(rq, s, z) [sin] y = Sin(rd) }}"""
    [alone] = [
        n.placement for n in qdqtool.analyze(model(text), target="vitis_xint8", trials=False).nodes if n.name == "relu"
    ]
    assert alone.rule == "minimum-group"
    assert alone.suggestion.startswith(
        "mend sin (Sin) beside it, so that they run together: no pass is known that replaces this Sin"
    )


EINSUM = f"""{HEADER}
g (float[1,3,4] x) => (float[1,3,5] y) <float[4,5] w = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2}}> {{
  [product] y = Einsum<equation="bij,jk->bik">(x, w) }}"""
MIXED = f"""{HEADER}
g (float[2] x, float[2] o) => (float[2] y) <{CONSTANTS}> {{
  [qx] xq = QuantizeLinear(x, s, n) [dx] xd = DequantizeLinear(xq, s, n) [qu] uq = QuantizeLinear(o, s, p) [du] ud = DequantizeLinear(uq, s, p)
  [sum] a = Add(xd, ud) [qy] yq = QuantizeLinear(a, s, p) [dy] y = DequantizeLinear(yq, s, p) }}"""


@pytest.mark.parametrize(
    ("text", "target", "node", "way", "left"),
    [
        (EINSUM, "cloud_ai100", "product", "`qdqtool opt -p decompose-einsum`", "fallback"),
        (EINSUM.replace("bij,jk->bik", "bij,jk->bki").replace("[1,3,5]", "[1,5,3]"), "qnn_htp", "product",
         "`qdqtool opt -p decompose-einsum`", "fallback"),
        (MIXED, "qnn_htp", "sum", "`qdqtool opt -p unify-widths`", "npu-float"),
    ],
)  # fmt: skip
def test_a_pass_is_named_that_mends_it(text: str, target: str, node: str, way: str, left: str, tmp_path: Path) -> None:
    file = str(tmp_path / "m.onnx")
    qdqtool.save(model(text), file)
    [before] = [n.placement for n in qdqtool.analyze(file, target=target, trials=False).nodes if n.name == node]
    assert before.verdict == left
    assert way in before.suggestion
    assert complaint(before.suggestion) is None
    after = qdqtool.analyze(follow(way, file, str(tmp_path)), target=target, trials=False)
    assert left not in {n.placement.verdict for n in after.nodes if n.is_compute}, after.reasons()


PIECES = {
    "RMSNormalization": (
        "float[2,8] y",
        "p = Mul(x, x) v = ReduceMean<axes=[-1]>(p) e = Add(v, eps) r = Sqrt(e) n = Div(x, r) y = Mul(n, gain)",
    ),
    "Gelu": ("float[2,8] y", "a = Div(x, root) e = Erf(a) f = Add(e, one) h = Mul(x, f) y = Mul(h, half)"),
}


@pytest.mark.parametrize(
    ("operator", "target", "verdict"),
    [
        ("RMSNormalization", "generic_int8", "fallback"),
        ("Gelu", "generic_int8", "fallback"),
        ("Gelu", "qnn_htp", "npu-float"),
    ],
)
def test_pieces_of_an_operator_that_the_opset_lacks_become_one(
    operator: str, target: str, verdict: str, tmp_path: Path
) -> None:
    """In what was quantized for the DPU, in pieces as the opset is too low; quantizing for the target itself makes one Gelu."""
    y, nodes = PIECES[operator]
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[2,8] x) => ({y}) <float eps = {{0.01}}, float one = {{1}}, float half = {{0.5}}, float root = {{1.41421356}},
      float[8] gain = {{1, 2, 3, 4, 5, 6, 7, 8}}> {{ {nodes} }}"""
    path, quantized = str(tmp_path / "m.onnx"), str(tmp_path / "q.onnx")
    qdqtool.save(model(text), path)
    qdqtool.quantize(path, data="random:2", preset="xint8", output=quantized)
    said = [n.placement for n in qdqtool.analyze(quantized, target=target, trials=False).nodes if n.is_compute]
    assert {placement.verdict for placement in said} == {verdict}
    whole = [placement.suggestion for placement in said if f"make one {operator} of it" in placement.suggestion]
    assert len(whole) == len(said)
    assert all(complaint(suggestion) is None for suggestion in whole)
    (tmp_path / "steps").mkdir()
    after = qdqtool.analyze(follow(whole[0], path, str(tmp_path / "steps")), target=target, trials=False)
    assert {n.placement.verdict for n in after.nodes if n.is_compute} == {"npu-int"}  # some presets quantize the pieces
    own = qdqtool.quantize(path, data="random:2", preset="xint8", target=target).model
    ops = {n.op for n in qdqtool.analyze(own, target=target, trials=False).nodes if n.is_compute and n.is_npu}
    assert (ops == {"Gelu"}) == (operator == "Gelu")


def test_the_pair_of_a_gain_is_named() -> None:
    text = """<ir_version: 11, opset_import: ["" : 23]>
    g (float[2,4] x) => (float[2,4] y) <float s = {0.5}, uint16 p = {32768}, int16 h = {0}, int16[4] gain = {1, 2, 3, 4}> {
      [qx] xq = QuantizeLinear(x, s, p) [dx] xd = DequantizeLinear(xq, s, p) [dg] g = DequantizeLinear(gain, s, h)
      [norm] n = RMSNormalization(xd, g) [qn] nq = QuantizeLinear(n, s, p) [dn] y = DequantizeLinear(nq, s, p) }"""
    [before] = [
        n.placement for n in qdqtool.analyze(model(text), target="qnn_htp", trials=False).nodes if n.name == "norm"
    ]
    assert before.verdict == "fallback"
    mend = "`qdqtool qdq convert --dtype uint16 --kinds weight --select op:RMSNormalization`"
    assert mend in before.suggestion
    graph = model(text)
    run_pipeline(graph, 'convert-encodings{dtype=uint16 kinds=[weight] select="op:RMSNormalization"}')
    assert [
        n.placement.verdict for n in qdqtool.analyze(graph, target="qnn_htp", trials=False).nodes if n.is_compute
    ] == ["npu-int"]
