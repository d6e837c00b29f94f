"""`quantize`: one printable pipeline, the same bytes every time and when replayed; what is excluded stays float."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qdqtool
from qdqtool.quantization.calibrating import exclude_options
from tests.cases.cli_helpers import CALIB, DIGITS, SAMPLES, Feed, accepted, cli, images, outputs, write
from tests.golden_messages.refusal import told

#: Options that make another pipeline.
VARIANTS: dict[str, list[str]] = {
    "plain": [],
    "exclude": ["--exclude", "/stem/*", "--exclude", "op:Concat"],
    "isolate": ["--exclude", "/block1/add", "--isolate"],
    "only": ["--only", "op:Conv", "--only", "after:/pool"],
    "weights dq": ["--weights", "dq"],
    "no fuse": ["--no-fuse-layers"],
    "keep functions": ["--keep-functions"],
    "target": ["--target", "generic_int8"],
    "options of the references": [
        "--extra-options",
        "UsePowerOf2Scale=false",
        "--extra-options",
        "per_channel=true",
        "--extra-options",
        "QDQOpTypePerChannelSupportToAxis={'Gemm': 0}",
        "--extra-options",
        "reduce_range=1",
        "--extra-options",
        "activation_type=QUInt8",
        "--extra-options",
        "ActivationSymmetric=False",
        "--extra-options",
        "Int32Bias=true",
        "--extra-options",
        "AddQDQPairToWeight=False",
    ],
    "policies": [
        "--extra-options",
        'OpTypesToExcludeOutputQuantization=["Concat","Gemm"]',
        "--extra-options",
        "DedicatedQDQPair=true",
        "--extra-options",
        "UseQDQContribOps=true",
        "--extra-options",
        "nodes_to_exclude=/block1/add",
        "--extra-options",
        "ForceQuantizeNoInputCheck=false",
        "--extra-options",
        "Int32Bias=true",
        "--extra-options",
        'TensorQuantOverrides={"input": [{"quant_type": "QUInt8"}], "/head/fc/Gemm_output_0": []}',
    ],
    "converted": [
        "--extra-options",
        'TensorQuantOverrides={"/stem/relu_output_0": {"convert": {"quant_type": "QInt16", "recv_nodes": ["/block1/conv1/conv", "/block1/add"]}}}',
    ],
    "all": ["--exclude", "/head/fc", "--isolate", "--weights", "dq", "--no-fuse-layers", "--only", "!op:MaxPool"],
}


@pytest.mark.product(extra=3)
@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_the_printed_pipeline_replayed_gives_the_same_bytes(options: list[str], tmp_path: Path) -> None:
    """With the ranges that quantize used, and with those that calibrate makes of the raw model."""
    own, raw, text = tmp_path / "own.json", tmp_path / "raw.json", tmp_path / "p.txt"
    cli(
        "quantize", DIGITS, "--data", CALIB, "--samples", "8", *options, "-o", tmp_path / "a.onnx", "--save-ranges", own
    )
    method = cli("quantize", DIGITS, *options, "--print-pipeline", "--json").json["method"]
    cli("calibrate", DIGITS, "--data", CALIB, "--samples", "8", "--method", method, "-o", raw)
    text.write_text(cli("quantize", DIGITS, *options, "--print-pipeline").out)
    accepted(tmp_path / "a.onnx")
    cli("opt", DIGITS, "-p", f"@{text}", "--ranges", own, "-o", tmp_path / "b.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    cli("quantize", DIGITS, "--ranges", raw, *options, "-o", tmp_path / "c.onnx")
    cli("opt", DIGITS, "-p", f"@{text}", "--ranges", raw, "-o", tmp_path / "d.onnx")
    assert (tmp_path / "c.onnx").read_bytes() == (tmp_path / "d.onnx").read_bytes()
    if method.startswith(
        "pow2"
    ):  # float scales show the last bits in which folding BatchNormalization moves the ranges
        assert cli("diff", tmp_path / "a.onnx", tmp_path / "c.onnx").out == "no differences\n"


def test_the_printed_pipeline_is_what_ran(tmp_path: Path) -> None:
    done = cli("quantize", DIGITS, "--data", "random:1", "--print-pipeline", "-o", tmp_path / "q.onnx")
    assert done.out == cli("quantize", DIGITS, "--print-pipeline").out
    assert ",observe{data=@data runtime=@runtime tensors=@tensors method=pow2-" in done.out
    assert ",annotate-encodings{encodings=@ranges constants=minmse " in done.out
    assert done.out.strip().endswith(",refine-positions{ranges=@ranges},narrow-weights")
    assert cli("quantize", DIGITS, "--print-pipeline", "--json").json["pipeline"] == done.out.strip()


def test_the_pipeline_is_not_printed_for_what_cannot_be(tmp_path: Path) -> None:
    told(cli("quantize", tmp_path / "no.onnx", "--print-pipeline", code=2).error)
    told(cli("quantize", DIGITS, "--exclude", "op:Nope", "--print-pipeline", code=2).error)


def test_equal_bytes_in_every_run(tmp_path: Path) -> None:
    for name in ("a", "b"):
        cli("quantize", DIGITS, "--data", CALIB, "--samples", "8", "-o", tmp_path / name / "q.onnx")
    assert (tmp_path / "a" / "q.onnx").read_bytes() == (tmp_path / "b" / "q.onnx").read_bytes()


def test_ranges_can_be_given_in_place_of_data(tmp_path: Path) -> None:
    cli("calibrate", DIGITS, "--data", CALIB, "--samples", "8", "-o", tmp_path / "r.json")
    done = cli("quantize", DIGITS, "--ranges", tmp_path / "r.json", "-o", tmp_path / "q.onnx", "--json")
    assert "sqnr_db" not in done.json
    assert done.json["method"] == "minmax"
    both = (
        "quantize",
        DIGITS,
        "--preset",
        "xint8",
        "--ranges",
        tmp_path / "r.json",
        "--data",
        CALIB,
        "--method",
        "pow2-nonoverflow",
    )
    done = cli(*both, "-o", tmp_path / "p.onnx", "--json")
    assert done.err == "warning: --method pow2-nonoverflow is not used: the ranges given are of method minmax\n"
    assert done.json["judged_on"]["samples"] == 16
    assert (tmp_path / "p.onnx").read_bytes() == (tmp_path / "q.onnx").read_bytes()


def test_options_of_the_method_are_said_beside_it(tmp_path: Path) -> None:
    """As a preset can say them."""
    said = ("--method", "percentile", "--method-option", "percentile=99")
    file = tmp_path / "own.toml"
    file.write_text(
        'extends = "a8w8"\ndescription = "own"\n[calibration]\nmethod = "percentile"\noptions.percentile.percentile = 99.0\n'
    )

    def made(name: str, *words: str | Path) -> bytes:
        data = ("--data", CALIB, "--samples", "8", "--no-provenance")
        cli("quantize", DIGITS, *data, *words, "-o", tmp_path / name)
        return (tmp_path / name).read_bytes()

    assert made("said.onnx", "--preset", "a8w8", *said) == made("own.onnx", "--preset", file)
    assert made("plain.onnx", "--preset", "a8w8", *said[:2]) != (tmp_path / "said.onnx").read_bytes()
    wrong = cli("quantize", DIGITS, "--data", CALIB, *said[:3], "percent=99", "-o", tmp_path / "x.onnx", code=2)
    told(wrong.error)
    cli("calibrate", DIGITS, "--data", CALIB, "--samples", "8", "-o", tmp_path / "r.json")
    given = cli(
        "quantize", DIGITS, "--preset", "a8w8", "--ranges", tmp_path / "r.json", *said[2:], "-o", tmp_path / "r.onnx"
    )
    assert given.err == "warning: --method-option is not used: the ranges are given\n"


def test_ranges_of_another_model_are_refused(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", "g (float[2] a) => (float[2] b) { [r] b = Relu(a) }")
    cli("calibrate", model, "--data", "random:1", "-o", tmp_path / "r.json")
    done = cli("quantize", DIGITS, "--ranges", tmp_path / "r.json", "-o", tmp_path / "q.onnx", code=2)
    told(done.error)


def pairs(path: Path) -> dict[str, str]:
    """Float value → kind, of every pair."""
    return {p["tensor"]: p["kind"] for p in cli("qdq", "list", path, "--json").json["pairs"]}


BLOCK = """
    g (float[1,4] x) => (float[1,4] y) <float[4,4] w = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}> {
      [first] a = MatMul(x, w)  [middle] b = Sigmoid(a)  [other] c = Tanh(a)  [last] y = Mul(b, c)
    }"""


def quantized_block(tmp_path: Path, *options: str) -> tuple[dict[str, str], Any]:
    model = write(tmp_path / "m.onnx", BLOCK)
    output = tmp_path / "q.onnx"
    done = cli("quantize", model, "--data", "random:4", *options, "-o", output, "--overwrite", "--json").json
    accepted(output)
    return pairs(output), done


def test_an_excluded_node_demands_nothing(tmp_path: Path) -> None:
    """`middle` is excluded: a is kept for first, b for last; c and w are nobody's business."""
    found, done = quantized_block(tmp_path, "--exclude", "middle")
    assert set(found) == {"x", "w", "a", "b", "c", "y"}
    assert done["excluded_nodes"] == ["middle"]
    kept = {k["tensor"]: k["reason"].partition("; ")[2] for k in done["kept"]}
    assert kept == {
        "a": "excluded middle touches it, kept for first",
        "b": "excluded middle touches it, kept for last",
    }


def test_values_that_nobody_else_demands_stay_float(tmp_path: Path) -> None:
    found, done = quantized_block(tmp_path, "--exclude", "first")
    assert set(found) == {"a", "b", "c", "y"}
    assert [k["tensor"] for k in done["kept"]] == ["a"]
    found, done = quantized_block(tmp_path, "--exclude", "middle", "--exclude", "last")
    assert set(found) == {"x", "w", "a", "c"}
    assert done["excluded_nodes"] == ["middle", "last"]


def test_isolate_keeps_the_neighbours_values_float_too(tmp_path: Path) -> None:
    found, done = quantized_block(tmp_path, "--exclude", "middle", "--isolate")
    assert set(found) == {"x", "w", "c", "y"}
    assert done["kept"] == []
    assert done["quantized_nodes"] == 3


def test_only(tmp_path: Path) -> None:
    found, done = quantized_block(tmp_path, "--only", "first", "--only", "op:Tanh")
    assert set(found) == {"x", "w", "a", "c"}
    assert [(e["node"], e["reason"]) for e in done["excluded"]] == [
        ("middle", "not selected by --only"),
        ("last", "not selected by --only"),
    ]


def test_an_excluded_layer_takes_its_weights_along(tmp_path: Path) -> None:
    cli("quantize", DIGITS, "--data", "random:1", "--exclude", "/stem/bn", "-o", tmp_path / "q.onnx")
    kinds = pairs(tmp_path / "q.onnx")
    assert {kind for name, kind in kinds.items() if name.startswith("/stem/bn")} == {
        "activation"
    }  # kept for /stem/relu
    assert "input" not in kinds


def test_a_type_that_is_folded_away_is_explained(tmp_path: Path) -> None:
    done = cli(
        "quantize", DIGITS, "--data", "random:1", "--exclude", "op:BatchNormalization", "-o", tmp_path / "q", code=2
    )
    told(done.error)
    cli(
        "quantize", DIGITS, "--preset", "w4-g32", "--data", "random:1", "--exclude", "op:BatchNormalization", "--no-fuse-layers",
        "-o", tmp_path / "q.onnx",
    )  # fmt: skip


def test_a_selector_that_excludes_no_node_is_refused(tmp_path: Path) -> None:
    done = cli("quantize", DIGITS, "--data", "random:1", "--exclude", "tensor:input", "-o", tmp_path / "q.onnx", code=2)
    told(done.error)


def test_only_of_nothing_is_nothing(tmp_path: Path) -> None:
    options = ("--data", "random:1", "--only", "op:Nope", "--allow-empty")
    told(cli("quantize", DIGITS, *options, "-o", tmp_path / "q.onnx", code=2).error)


def test_allow_empty_leaves_the_selector_out_of_the_pipeline(tmp_path: Path) -> None:
    options = ("--exclude", "op:Nope", "--exclude", "/head/fc", "--allow-empty")
    cli("calibrate", DIGITS, "--data", CALIB, "--samples", "4", "-o", tmp_path / "r.json")
    options = (*options, "--ranges", tmp_path / "r.json")
    text = cli("quantize", DIGITS, *options, "--print-pipeline").out
    assert "Nope" not in text
    assert 'exclude="/head/fc"' in text
    cli("quantize", DIGITS, *options, "-o", tmp_path / "q.onnx")
    cli("opt", DIGITS, "-p", text, "--ranges", tmp_path / "r.json", "-o", tmp_path / "o.onnx")
    assert (tmp_path / "q.onnx").read_bytes() == (tmp_path / "o.onnx").read_bytes()


def test_a_quantized_model_is_not_quantized_again(tmp_path: Path) -> None:
    cli("quantize", DIGITS, "--data", "random:1", "-o", tmp_path / "q.onnx")
    done = cli("quantize", tmp_path / "q.onnx", "--data", "random:1", "-o", tmp_path / "qq.onnx", code=2)
    told(done.error)


def attention(mask: str) -> str:
    """Scores plus a mask that is chosen by a condition, softmax, values: what exporters make of masked attention."""
    return f"""
        g (float[1,4] x, bool[1,4] allowed) => (float[1,4] y) <float[4,4] w = {{1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}}> {{
          [zero] z = Constant<value: tensor = float[1] {{0}}>()  [never] m = Constant<value: tensor = float[1] {{{mask}}}>()
          [scores] s = MatMul(x, w)  [mask] bias = Where(allowed, z, m)  [masked] t = Add(s, bias)
          [softmax] p = Softmax(t)  [values] y = MatMul(p, w)
        }}"""


def masked_data(tmp_path: Path) -> Feed:
    feed = {"x": np.array([[1, 2, 3, 4]], np.float32), "allowed": np.array([[True, True, False, False]])}
    np.savez(tmp_path / "data.npz", **feed)
    return feed


WAY_OUT = "--exclude mask --exclude masked --isolate"


def test_a_mask_of_infinity_is_refused_with_the_way_out(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", attention("-inf"))
    feed = masked_data(tmp_path)
    command = ("quantize", model, "--data", tmp_path / "data.npz", "-o", tmp_path / "q.onnx")
    told(cli(*command, "--no-bound-masks", code=2).error)
    cli(*command)
    assert {"bias", "t"} <= set(pairs(tmp_path / "q.onnx"))
    np.testing.assert_allclose(outputs(tmp_path / "q.onnx", feed)["y"], outputs(model, feed)["y"], atol=4 / 128)
    cli(*command, "--no-bound-masks", *WAY_OUT.split(), "--overwrite")
    accepted(tmp_path / "q.onnx")
    assert set(pairs(tmp_path / "q.onnx")) == {"x", "w", "p", "y"}
    np.testing.assert_allclose(outputs(tmp_path / "q.onnx", feed)["y"], outputs(model, feed)["y"], atol=2 / 128)


def test_a_huge_finite_mask_is_warned_about(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", attention("-3.4e38"))
    masked_data(tmp_path)
    quantize = ("quantize", model, "--preset", "xint8", "--data", tmp_path / "data.npz")
    command = (*quantize, "--overwrite", "-o", tmp_path / "q.onnx")
    done = cli(*command, "--no-bound-masks")
    assert done.err.startswith("warning: bias, t: the range reaches ")
    assert done.err.partition("\n")[0].endswith(
        f"; hide by a bound that the grid holds without --no-bound-masks, or leave it float with {WAY_OUT}"
    )
    assert cli(*command, "--no-bound-masks", *WAY_OUT.split()).err == ""
    assert cli(*command).err == ""


def test_calibrate_tells_its_own_way_out(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", attention("-inf"))
    masked_data(tmp_path)
    command = ("calibrate", model, "--data", tmp_path / "data.npz", "-o", tmp_path / "r.json")
    told(cli(*command, code=2).error)
    cli(*command, "--select", "!tensor:bias & !tensor:t")
    quantize = ("quantize", model, "--ranges", tmp_path / "r.json", "-o", tmp_path / "q.onnx")
    told(cli(*quantize, code=2).error)
    cli(*quantize, *WAY_OUT.split())


def test_the_size_counts_the_data_file(tmp_path: Path) -> None:
    done = cli("quantize", SAMPLES / "external_data.onnx", "--data", "random:2", "-o", tmp_path / "q.onnx")
    data = next(tmp_path.glob("*.data"))
    size = (data.stat().st_size + (tmp_path / "q.onnx").stat().st_size) / 1024
    assert f"{size:.1f} KiB" in done.out


def test_provenance(tmp_path: Path) -> None:
    cli("quantize", DIGITS, "--data", "random:1", "-o", tmp_path / "q.onnx")
    cli("quantize", DIGITS, "--data", "random:1", "-o", tmp_path / "p.onnx", "--no-provenance")
    noted = [{p.key for p in onnx.load(tmp_path / name).metadata_props} for name in ("q.onnx", "p.onnx")]
    assert noted[0] - noted[1] == {"qdqtool.provenance"}
    producers = [onnx.load(tmp_path / name).producer_name for name in ("q.onnx", "p.onnx")]
    assert producers == ["qdqtool", onnx.load(DIGITS).producer_name]


def test_accuracy_survives(tmp_path: Path) -> None:
    """32 dB on this network; below 25 something is wrong."""
    done = cli("quantize", DIGITS, "--data", CALIB, "-o", tmp_path / "q.onnx", "--json").json
    assert done["sqnr_db"] > 25
    feed = images(64)
    a, b = (outputs(path, feed)["logits"].argmax(axis=1) for path in (DIGITS, tmp_path / "q.onnx"))
    assert (a == b).mean() >= 0.98


ODD = ['my "node", {x}=[1] é', "a & b", "!bang", "op:Relu", "-v", "*star?", "sp ace\\"]


def odd_model(path: Path) -> str:
    """A chain of Sigmoids whose nodes and values bear names that mean something to shells, selectors and pipelines."""
    ends = ["x", *(f't "{i}", é=1' for i in range(len(ODD) - 1)), "y"]
    nodes = [onnx.helper.make_node("Sigmoid", [ends[i]], [ends[i + 1]], name=name) for i, name in enumerate(ODD)]
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", 4]) for name in "xy")
    graph = onnx.helper.make_graph(nodes, 'g "x"', [x], [y])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10), path)
    return str(path)


@pytest.mark.parametrize("name", ODD)
def test_any_node_can_be_excluded_by_its_name(name: str, tmp_path: Path) -> None:
    """With the selector that our own hints give; and the printed pipeline still replays."""
    model, ranges = odd_model(tmp_path / "m.onnx"), tmp_path / "r.json"
    output = f't "{ODD.index(name)}", é=1' if name != ODD[-1] else "y"
    hint = shlex.split(exclude_options(qdqtool.load(model), [output]))
    assert hint[-1] == "--isolate"
    cli("calibrate", model, "--data", "random:2", "-o", ranges)
    done = cli("quantize", model, "--ranges", ranges, *hint[:-1], "-o", tmp_path / "q.onnx", "--json").json
    assert done["excluded_nodes"] == [name]
    cli("opt", model, "-p", done["pipeline"], "--ranges", ranges, "-o", tmp_path / "o.onnx")
    assert (tmp_path / "q.onnx").read_bytes() == (tmp_path / "o.onnx").read_bytes()


def test_types_that_cannot_be_quantized_are_named(tmp_path: Path) -> None:
    double = write(tmp_path / "m.onnx", "g (double[2] x) => (double[2] y) { [r] y = Relu(x) }")
    done = cli("quantize", double, "--data", "random:1", "-o", tmp_path / "q.onnx", code=2)
    told(done.error)
    half = "g (float16[2] x) => (float16[2] y) { [r] y = Relu(x) }"
    for name, head in (("old", '<ir_version: 8, opset_import: ["" : 13]> '), ("new", "")):
        model, output = write(tmp_path / f"{name}.onnx", head + half), tmp_path / f"{name}_q.onnx"
        cli("quantize", model, "--data", "random:1", "-o", output)
        accepted(output)
        assert onnx.load(output).opset_import[0].version == (21 if name == "new" else 19)


def test_values_that_stay_float_are_listed(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", """
        g (float[2] x) => (float[2] y) <float[2] never = {-inf, 0}> { [a] t = Relu(x) [b] y = Max(t, never) }
        """)  # fmt: skip
    done = cli("quantize", model, "--data", "random:1", "-o", tmp_path / "q.onnx", "--json").json
    assert done["refused"] == [{"tensor": "never", "reason": "holds values that are not finite"}]
    shown = cli("quantize", model, "--data", "random:1", "-o", tmp_path / "q.onnx", "--overwrite").out
    assert "never                   holds values that are not finite" in shown
