"""The single-purpose edits: what they write runs in onnxruntime and computes what it should."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.cases.cli_helpers import (
    CALIB,
    DIGITS,
    SAMPLES,
    Feed,
    accepted,
    cli,
    images,
    outputs,
    process,
    same_outputs,
    write,
)
from tests.golden_messages.refusal import told

RANDOM = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def llama_feed(past: int = 5, length: int = 3, batch: int = 1) -> Feed:
    feed: Feed = {
        "input_ids": RANDOM.integers(0, 1024, (batch, length)),
        "attention_mask": np.ones((batch, past + length), np.int64),
        "position_ids": np.tile(np.arange(past, past + length, dtype=np.int64), (batch, 1)),
    }
    return feed | {
        f"past_key_values.{layer}.{part}": normal(batch, 2, past, 32) for layer in range(4) for part in ("key", "value")
    }


#: A feed of each sample model.
FEEDS: dict[str, Feed] = {
    "detector": {"input": normal(2, 1, 64, 64)},
    "external_data": {"input": normal(2, 64)},
    "if_branch": {"input": normal(1, 3, 8, 8), "flag": np.array(True)},
    "int4_weights": {"input": normal(2, 64)},
    "local_function": {"input": normal(2, 16)},
    "loop_body": {"input": normal(2, 16), "steps": np.array(3)},
    "mobilenet_block": {"input": normal(1, 3, 32, 32)},
    "tiny_llama": llama_feed(),
    "vit_block": {"input": normal(1, 3, 32, 32)},
}


@pytest.mark.parametrize("name", FEEDS)
def test_simplify_keeps_every_bit(name: str, tmp_path: Path) -> None:
    source = SAMPLES / f"{name}.onnx"
    cli("simplify", source, "--no-fold-floats", "-o", tmp_path / "s.onnx")
    same_outputs(source, tmp_path / "s.onnx", FEEDS[name])
    accepted(tmp_path / "s.onnx")


def test_simplify_folds_and_keeps_qdq(tmp_path: Path) -> None:
    model = write(tmp_path / "m.onnx", """
        g (float[2,3] x) => (float[3,2] y) <float s = {0.5}, int8 z = {0}> {
          [q] a = QuantizeLinear(x, s, z)  [d] b = DequantizeLinear(a, s, z)  [i] c = Identity(b)
          [t1] d = Transpose<perm = [1, 0]>(c)  [t2] e = Transpose<perm = [1, 0]>(d)  [t3] f = Transpose<perm = [1, 0]>(e)
          [one] one = Constant<value: tensor = int64[1] {1}>()  [three] three = Constant<value: tensor = int64[1] {3}>()
          [two] two = Add(one, one)  [shape] shape = Concat<axis = 0>(three, two)  [out] y = Reshape(f, shape)
        }""")  # fmt: skip
    cli("simplify", model, "-o", tmp_path / "s.onnx")
    ops = [n.op_type for n in onnx.load(tmp_path / "s.onnx").graph.node]
    assert sorted(ops) == ["DequantizeLinear", "QuantizeLinear", "Transpose"]
    same_outputs(model, tmp_path / "s.onnx", {"x": normal(2, 3)})


def test_simplify_prints_its_pipeline() -> None:
    assert cli("simplify", DIGITS, "--print-pipeline").out.startswith(
        "infer-shapes,lift-constants,fold-constants{what=all compute=@runtime},"
    )
    assert ",fold-constants,infer-shapes," in cli("simplify", DIGITS, "--print-pipeline", "--no-fold-floats").out
    told(cli("simplify", DIGITS, code=2).error)


def test_extract(tmp_path: Path) -> None:
    """The front half feeds the back half: the same logits, bit for bit."""
    front, back = tmp_path / "front.onnx", tmp_path / "back.onnx"
    cli("extract", DIGITS, "--outputs", "/pool_output_0", "-o", front)
    cli("extract", DIGITS, "--inputs", "/pool_output_0", "-o", back)
    for part in (front, back):
        accepted(part)
    middle = outputs(front, images())
    assert list(middle) == ["/pool_output_0"]
    np.testing.assert_array_equal(outputs(back, middle)["logits"], outputs(DIGITS, images())["logits"])


def test_extract_with_several_ends(tmp_path: Path) -> None:
    cut = "/block1/relu2_output_0,/stem/relu_output_0"
    cli("extract", DIGITS, "--inputs", "input", "--outputs", cut, "-o", tmp_path / "a.onnx")
    assert list(outputs(tmp_path / "a.onnx", images())) == cut.split(",")
    done = cli("extract", DIGITS, "--inputs", "/block1/conv1/bn_output_0", "-o", tmp_path / "b.onnx", code=2)
    told(done.error)


def test_extract_takes_bodies_and_functions_along(tmp_path: Path) -> None:
    cli("extract", SAMPLES / "if_branch.onnx", "--outputs", "output", "-o", tmp_path / "if.onnx")
    same_outputs(SAMPLES / "if_branch.onnx", tmp_path / "if.onnx", FEEDS["if_branch"])
    cli("extract", SAMPLES / "local_function.onnx", "--outputs", "/first_output_0", "-o", tmp_path / "f.onnx")
    assert outputs(tmp_path / "f.onnx", FEEDS["local_function"])["/first_output_0"].shape == (2, 16)


def test_rename(tmp_path: Path) -> None:
    renames = ["--value", "input=image", "--value", "logits=scores", "--node", "/stem/conv=first", "--dim", "N=batch"]
    cli("rename", DIGITS, *renames, "--value", "head.fc.weight=W", "-o", tmp_path / "r.onnx")
    accepted(tmp_path / "r.onnx")
    found = cli("inspect", tmp_path / "r.onnx", "--json").json
    assert (found["inputs"][0]["name"], found["inputs"][0]["shape"][0]) == ("image", "batch")
    scores = outputs(tmp_path / "r.onnx", {"image": images()["input"]})["scores"]
    np.testing.assert_array_equal(scores, outputs(DIGITS, images())["logits"])
    assert cli("match", tmp_path / "r.onnx", "first").out.startswith("1 node")


def test_rename_swaps(tmp_path: Path) -> None:
    swap = ["--value", "input=logits", "--value", "logits=input"]
    cli("rename", DIGITS, *swap, "-o", tmp_path / "r.onnx")
    np.testing.assert_array_equal(
        outputs(tmp_path / "r.onnx", {"logits": images()["input"]})["input"], outputs(DIGITS, images())["logits"]
    )


def test_rename_means_the_main_graph_before_functions(tmp_path: Path) -> None:
    """`x` and `b1` are names inside the functions, `input` and `x` are free in the main graph."""
    cli(
        "rename",
        SAMPLES / "local_function.onnx",
        "--value",
        "input=x",
        "--value",
        "output=b1",
        "-o",
        tmp_path / "r.onnx",
    )
    feed = FEEDS["local_function"]
    np.testing.assert_array_equal(
        outputs(tmp_path / "r.onnx", {"x": feed["input"]})["b1"],
        outputs(SAMPLES / "local_function.onnx", feed)["output"],
    )


def test_rename_reaches_into_computed_dimensions(tmp_path: Path) -> None:
    cli("rename", SAMPLES / "tiny_llama.onnx", "--dim", "past_sequence_length=past", "-o", tmp_path / "r.onnx")
    found = cli("inspect", tmp_path / "r.onnx", "--json").json
    assert found["outputs"][1]["shape"] == ["batch_size", 2, "past + sequence_length", 32]
    assert "past_sequence_length" not in found["dynamic_dims"]


def test_fix_shapes(tmp_path: Path) -> None:
    cli("fix-shapes", DIGITS, "--dim", "N=4", "-o", tmp_path / "f.onnx")
    cli("fix-shapes", DIGITS, "--input-shape", "input=4x1x8x8", "-o", tmp_path / "g.onnx")
    for name in ("f.onnx", "g.onnx"):
        accepted(tmp_path / name)
        same_outputs(DIGITS, tmp_path / name, images(4))
        found = cli("inspect", tmp_path / name, "--json").json
        assert (found["outputs"][0]["shape"], found["dynamic_dims"]) == ([4, 10], [])


@pytest.mark.parametrize("past", [0, 5])
def test_fix_shapes_of_a_decoder(past: int, tmp_path: Path) -> None:
    """An empty cache is a size too; computed dimensions become numbers."""
    source = SAMPLES / "tiny_llama.onnx"
    sizes = {"batch_size": 2, "sequence_length": 3, "past_sequence_length": past, "total_sequence_length": past + 3}
    dims = [word for name, size in sizes.items() for word in ("--dim", f"{name}={size}")]
    cli("fix-shapes", source, *dims, "-o", tmp_path / "f.onnx")
    found = cli("inspect", tmp_path / "f.onnx", "--json").json
    assert [v["shape"] for v in found["outputs"]] == [[2, 3, 1024], *[[2, 2, past + 3, 32]] * 8]
    same_outputs(source, tmp_path / "f.onnx", llama_feed(past, 3, 2))


@pytest.mark.parametrize("opset", [17, 22])
def test_convert_opset(opset: int, tmp_path: Path) -> None:
    cli("convert-opset", DIGITS, "--opset", str(opset), "-o", tmp_path / "c.onnx")
    accepted(tmp_path / "c.onnx")
    assert cli("inspect", tmp_path / "c.onnx", "--json").json["opset"] == opset
    same_outputs(DIGITS, tmp_path / "c.onnx", images())


def test_externalize_and_back(tmp_path: Path) -> None:
    done = cli("externalize", DIGITS, "-o", tmp_path / "x.onnx")
    data = next(tmp_path.glob("x.*.data"))
    assert done.out == f"wrote {tmp_path / 'x.onnx'} and {data}\n"
    assert (tmp_path / "x.onnx").stat().st_size < 20_000 < data.stat().st_size
    same_outputs(DIGITS, tmp_path / "x.onnx", images())
    cli("externalize", tmp_path / "x.onnx", "--inline", "-o", tmp_path / "in" / "y.onnx")
    assert [p.name for p in (tmp_path / "in").iterdir()] == ["y.onnx"]
    same_outputs(DIGITS, tmp_path / "in" / "y.onnx", images())
    assert cli("diff", DIGITS, tmp_path / "in" / "y.onnx").out == "no differences\n"


def test_edits_of_external_data_stay_external(tmp_path: Path) -> None:
    source = SAMPLES / "external_data.onnx"
    cli("opt", source, "-p", "give-names,remove-unused", "-o", tmp_path / "o.onnx")
    assert len(list(tmp_path.glob("o.*.data"))) == 1
    same_outputs(source, tmp_path / "o.onnx", FEEDS["external_data"])


@pytest.mark.parametrize("weights", ["qdq", "dq"])
def test_insert_and_remove_are_inverse(weights: str, tmp_path: Path) -> None:
    """Weights come back as the numbers their integers stand for; with pairs on float weights as they were."""
    cli("calibrate", DIGITS, "--data", CALIB, "--samples", "4", "-o", tmp_path / "r.json")
    inserted, removed = tmp_path / "i.onnx", tmp_path / "r.onnx"
    cli("qdq", "insert", DIGITS, "--ranges", tmp_path / "r.json", "--weights", weights, "-o", inserted)
    accepted(inserted)
    assert cli("inspect", inserted, "--json").json["qdq"]["pairs"] == 33
    cli("qdq", "remove", inserted, "--all", "-o", removed)
    qdq = cli("inspect", removed, "--json").json["qdq"]
    assert set(qdq.values()) == {0}
    if weights == "qdq":
        same_outputs(DIGITS, removed, images())
        assert cli("diff", DIGITS, removed).out == "no differences\n"
    else:
        accepted(removed)


def test_qdq_with_an_encoding_given(tmp_path: Path) -> None:
    options = ("--select", "tensor:logits", "--scale", "0.5", "--zero-point", "3", "--dtype", "uint8")
    cli("qdq", "insert", DIGITS, *options, "-o", tmp_path / "i.onnx")
    logits = outputs(DIGITS, images())["logits"]
    wanted = (np.clip(np.rint(logits / np.float32(0.5)) + 3, 0, 255) - 3) * np.float32(0.5)
    np.testing.assert_array_equal(outputs(tmp_path / "i.onnx", images())["logits"], wanted)
    again = cli("qdq", "insert", tmp_path / "i.onnx", *options, "-o", tmp_path / "j.onnx")
    assert again.out.splitlines()[0].endswith(": 0 changes, 1 skipped")


@pytest.mark.parametrize(
    "options",
    [
        ["--select", "tensor:logits", "--scale", "0"],
        ["--select", "tensor:logits", "--scale", "1", "--zero-point", "300"],
        ["--select", "tensor:logits", "--scale", "1", "--dtype", "int3"],
        ["--select", "tensor:head.fc.weight", "--scale", "1", "--scale", "2"],
        ["--select", "tensor:head.fc.weight", "--scale", "1", "--scale", "2", "--axis", "0"],
    ],
    ids=["scale", "zero point", "type", "scales without axis", "scales"],
)
def test_encodings_that_do_not_fit(options: list[str], tmp_path: Path) -> None:
    told(cli("qdq", "insert", DIGITS, *options, "-o", tmp_path / "o.onnx", code=2).error)
    assert not list(tmp_path.iterdir())


def test_remove_some(tmp_path: Path) -> None:
    cli("quantize", DIGITS, "--data", "random:2", "-o", tmp_path / "q.onnx")
    cli("qdq", "remove", tmp_path / "q.onnx", "--select", "op:Concat", "-o", tmp_path / "r.onnx")
    left = {p["tensor"] for p in cli("qdq", "list", tmp_path / "r.onnx", "--json").json["pairs"]}
    assert len(left) == 26
    assert "/concat_output_0" not in left
    cli("qdq", "remove", tmp_path / "q.onnx", "--all", "--keep-weights", "-o", tmp_path / "w.onnx")
    assert cli("inspect", tmp_path / "w.onnx", "--json").json["qdq"]["pairs"] == 14


def test_text_formats(tmp_path: Path) -> None:
    for name in ("m.onnxtxt", "m.json", "m.textproto"):
        cli("simplify", DIGITS, "--no-fold-floats", "-o", tmp_path / name)
        assert cli("check", tmp_path / name, "--json").json["findings"] == []
        cli("simplify", tmp_path / name, "--no-fold-floats", "-o", tmp_path / "back.onnx", "--overwrite")
        same_outputs(DIGITS, tmp_path / "back.onnx", images())


def test_a_link_is_not_followed_when_written_over(tmp_path: Path) -> None:
    (tmp_path / "real.onnx").write_bytes(b"precious")
    (tmp_path / "link.onnx").symlink_to(tmp_path / "real.onnx")
    cli("simplify", DIGITS, "-o", tmp_path / "link.onnx", "--overwrite")
    assert (tmp_path / "real.onnx").read_bytes() == b"precious"


def test_in_a_process_of_its_own(tmp_path: Path) -> None:
    done = process("simplify", DIGITS, "-o", tmp_path / "s.onnx")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == f"wrote {tmp_path / 's.onnx'}"


def test_a_stored_weight_goes_by_its_float_name(tmp_path: Path) -> None:
    cli("quantize", DIGITS, "--data", "random:2", "--weights", "dq", "-o", tmp_path / "q.onnx")
    select = ("--select", "tensor:head.fc.weight")
    assert len(cli("qdq", "list", tmp_path / "q.onnx", *select, "--json").json["pairs"]) == 1
    cli("qdq", "remove", tmp_path / "q.onnx", *select, "-o", tmp_path / "r.onnx")
    same_outputs(tmp_path / "q.onnx", tmp_path / "r.onnx", images())
    assert "head.fc.weight" in {i.name for i in onnx.load(tmp_path / "r.onnx").graph.initializer}


def test_the_data_file_that_is_shared_is_named_and_copied_where_asked(tmp_path: Path) -> None:
    for name in ("external_data.onnx", "external_data.onnx.data"):
        shutil.copy(SAMPLES / name, tmp_path)
    source, data = tmp_path / "external_data.onnx", str(tmp_path / "external_data.onnx.data")
    shares = cli("simplify", source, "-o", tmp_path / "a.onnx")
    assert shares.out.endswith(f"a.onnx; weights in {data}, shared with {source} (--copy-data writes its own)\n")
    assert cli("simplify", source, "-o", tmp_path / "b.onnx", "--json").json["shared_data"] == [data]
    owns = cli("simplify", source, "-o", tmp_path / "c.onnx", "--copy-data")
    assert "shared" not in owns.out
    (made,) = tmp_path.glob("c.*.data")
    assert owns.out.endswith(f"wrote {tmp_path / 'c.onnx'} and {made}\n")
    Path(data).unlink()
    onnx.checker.check_model(str(tmp_path / "c.onnx"))
    quantized = cli("quantize", tmp_path / "c.onnx", "--data", "random:1", "-o", tmp_path / "q.onnx").out
    assert f"weights in {made}, shared with {tmp_path / 'c.onnx'}" in quantized
