"""What is attacked: small models of every kind, each with data for it; made once into a folder from what the tree holds."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qdqtool.cli.main import run

ROOT = Path(__file__).parents[2]
#: Models as they lie in the tree, and how often each is taken.
STORED = {
    "qdqtool/_demo/digits.onnx": 6, "sample_models/if_branch.onnx": 3, "sample_models/loop_body.onnx": 3,
    "sample_models/int4_weights.onnx": 3, "sample_models/local_function.onnx": 3, "sample_models/quark_layout.onnx": 3,
    "sample_models/external_data.onnx": 1, "sample_models/mobilenet_block.onnx": 2, "sample_models/vit_block.onnx": 1,
    "sample_models/detector.onnx": 1, "tests/data/xint8_parity/a.onnx": 3, "tests/data/xint8_parity/d.onnx": 3,
    "tests/data/xint8_parity/n.onnx": 3, "tests/data/decoders/gpt2_torchscript/model.onnx": 2,
    "tests/data/decoders/llama_dynamo23/model.onnx": 2, "tests/data/decoders/llama_genai_int4/model.onnx": 2,
}  # fmt: skip
#: What is made of some of them: the arguments between the model and ``-o``.
MADE = {
    "digits-qdq": ("digits", "quantize {m} --preset xint8 --data random:2"),
    "digits-a8w8": ("digits", "quantize {m} --preset qnn-a8w8 --data random:2"),
    "digits-qoperator": ("digits-a8w8", "qdq convert {m} --qoperators"),
    "vit-qdq": ("vit_block", "quantize {m} --preset a16w8 --data random:2"),
    "digits-lowered": ("digits-qdq", "lower {m} --target vitis_xint8"),
    "digits-compiled": ("digits-qdq", "compile {m} --target vitis_xint8"),
    "d-qdq": ("d", "quantize {m} --preset xint8 --data random:2"),
}
#: Bytes of a model beyond which it is taken less often.
LARGE = 150_000


@dataclass(frozen=True)
class Seed:
    """A model, its data, and beside them what its commands read.

    Args:
        name: of the model.
        model: bytes of the ``.onnx``.
        files: further files, by name: ``d.npz``, external data.
        weight: how often it is taken.
    """

    name: str
    model: bytes
    files: dict[str, bytes]
    weight: float


def seeds(folder: Path) -> list[Seed]:
    """All seeds; those that take a command are made in ``folder`` unless they lie there."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {_name(path): ROOT / path for path in STORED}
    weights = {_name(path): float(weight) for path, weight in STORED.items()}
    for name, (source, command) in MADE.items():
        paths[name], weights[name] = folder / f"{name}.onnx", 2.0
        if not paths[name].exists():
            arguments = [paths[source] if word == "{m}" else word for word in command.split()]
            code = run([*map(str, arguments), "-o", str(paths[name]), "-q"])
            assert code == 0, f"{command}: exit {code}"
    found = [_seed(name, path, weights[name]) for name, path in paths.items()]
    return [*found, Seed("tiny", _tiny().SerializeToString(), {"d.npz": _npz(_tiny(), folder)}, 6.0)]


def shared(folder: Path) -> dict[str, bytes]:
    """Files that lie beside every model: encodings, a split folder, a text and a tokenizer."""
    made = folder / "shared"
    if not made.exists():
        made.mkdir(parents=True)
        (made / "text.txt").write_text("the quick brown fox " * 20)
        shutil.copy(ROOT / "sample_models" / "tokenizer.json", made / "tok.json")
        decoder = ROOT / "tests" / "data" / "decoders" / "llama_dynamo23" / "model.onnx"
        for command in (
            f"encodings export {folder}/digits-qdq.onnx --format aimet-1.0.0 -o {made}/e.json",
            f"split {decoder} -o {made}/split --prefill 4 --decode 1 --context 8",
        ):
            assert run([*command.split(), "-q"]) == 0, command
    return {str(path.relative_to(made)): path.read_bytes() for path in made.rglob("*") if path.is_file()}


def _name(path: str) -> str:
    stem = Path(path).stem
    return Path(path).parent.name if stem == "model" else stem


def _seed(name: str, path: Path, weight: float) -> Seed:
    data, model = path.read_bytes(), onnx.load(path, load_external_data=False)
    folder, places = (
        path.parent,
        [e.value for t in model.graph.initializer for e in t.external_data if e.key == "location"],
    )
    files = {place: (folder / place).read_bytes() for place in places}
    return Seed(name, data, {**files, "d.npz": _npz(model, folder)}, weight / 4 if len(data) > LARGE else weight)


def _npz(model: onnx.ModelProto, folder: Path) -> bytes:
    """Two samples for every input; symbolic sizes are 2."""
    import io

    rng = np.random.default_rng(1)
    arrays: dict[str, np.ndarray] = {}
    stored = {tensor.name for tensor in model.graph.initializer}
    for info in model.graph.input:
        kind = info.type.tensor_type
        sizes = [dim.dim_value or 2 for dim in kind.shape.dim]
        if info.name not in stored and kind.elem_type:
            dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
            values = rng.normal(size=[2 * sizes[0], *sizes[1:]] if sizes else [2])
            arrays[info.name] = values.astype(dtype) if dtype != np.int64 else np.ones(values.shape, np.int64)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _tiny() -> onnx.ModelProto:
    """A bit of everything in 2 KB: attributes of each kind, constant shapes, a Conv, pairs, a reduction, a Resize."""
    stored = {
        "w": np.ones((4, 2, 3, 3), np.float32), "s": np.array(0.5, np.float32), "z": np.array(0, np.int8),
        "shape": np.array([0, 4, -1]), "starts": np.array([0]), "ends": np.array([2]), "axes": np.array([2]),
        "scales": np.array([1, 1, 2, 2], np.float32), "m": np.ones((9, 4), np.float32), "pads": np.array([0, 0, 0, 0, 0, 1]),
    }  # fmt: skip
    nodes = [
        ("QuantizeLinear", "x s z", "xq", {}), ("DequantizeLinear", "xq s z", "xd", {}),
        ("Conv", "xd w", "c", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2], "group": 1}),
        ("LeakyRelu", "c", "r", {"alpha": 0.1}), ("Resize", "r  scales", "u", {"mode": "nearest"}),
        ("MaxPool", "u", "p", {"kernel_shape": [2, 2], "strides": [2, 2]}), ("Reshape", "p shape", "f", {}),
        ("Slice", "f starts ends axes", "g", {}), ("Pad", "g pads", "k", {"mode": "constant"}), ("Transpose", "k", "t", {"perm": [0, 2, 1]}),
        ("ReduceMean", "t axes", "v", {"keepdims": 1}), ("Sub", "t v", "e", {}), ("Softmax", "e", "h", {"axis": -1}),
        ("Concat", "h e", "j", {"axis": 1}), ("Gemm", "m m2", "o", {"transB": 1, "alpha": 0.5}), ("Shape", "x", "sh", {}),
        ("Gather", "sh starts", "ga", {"axis": 0}), ("Cast", "ga", "y2", {"to": 1}), ("Split", "j", "y k2", {"axis": 1, "num_outputs": 2}),
    ]  # fmt: skip
    stored["m2"] = np.ones((3, 4), np.float32)
    graph = helper.make_graph(
        [
            helper.make_node(op, ["" if v == "_" else v for v in reads.replace("  ", " _ ").split(" ")], writes.split(), name=f"n{k}", **more)
            for k, (op, reads, writes, more) in enumerate(nodes)
        ],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 2, 6, 6])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "k2", "o", "y2")],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    model.metadata_props.add(key="note", value=json.dumps({"a": 1}))
    return model
