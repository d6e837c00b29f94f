"""What the builder scripts share: an ONNX graph writer, folding, checks and byte-stable files.

Nothing here needs torch. Models made here are IR 10, opset 21; a model that the torch exporter wrote keeps its opset
and gets IR 10.
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

IR_VERSION = 10
OPSET = 21
BATCH_NORM_EPSILON = 1e-5

Attribute = int | float | str | Sequence[int] | onnx.TensorProto | onnx.GraphProto
Weights = dict[str, np.ndarray]

KEPT_METADATA = ("namespace", "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy")
MACHINE_TRACES = (
    "site-packages",
    str(Path(__file__).resolve().parent),
    sys.prefix,
    str(Path.home()),
    tempfile.gettempdir(),
)


class GraphBuilder:
    """Collects nodes and initializers in execution order.

    A node `/stem/conv` writes the value `/stem/conv_output_0`, as the torch exporters name it; initializers have
    dotted names.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def weight(self, name: str, array: np.ndarray) -> str:
        """Add `array` as an initializer and return its name."""
        self.initializers.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def node(
        self, op: str, name: str, inputs: Sequence[str], output: str = "", domain: str = "", **attributes: Attribute
    ) -> str:
        """Add a node with one output and return the output's name."""
        output = output or f"{name}_output_0"
        node = helper.make_node(op, list(inputs), [output], name=name, domain=domain)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in sorted(attributes.items()))
        self.nodes.append(node)
        return output

    def conv(self, x: str, name: str, weights: Weights, *, stride: int = 1, groups: int = 1) -> str:
        """Convolution [N, C, H, W] -> [N, M, H/stride, W/stride], padding 'same', kernel and bias from `weights`."""
        key = name.strip("/").replace("/", ".")
        kernel = weights[f"{key}.weight"]
        inputs = [x, self.weight(f"{key}.weight", kernel)]
        if f"{key}.bias" in weights:
            inputs.append(self.weight(f"{key}.bias", weights[f"{key}.bias"]))
        size = kernel.shape[2]
        return self.node(
            "Conv", name, inputs, kernel_shape=[size, size], pads=[size // 2] * 4, strides=[stride] * 2, group=groups
        )

    def batch_norm(self, x: str, name: str, weights: Weights) -> str:
        """BatchNormalization over axis 1 with `weight`, `bias`, `running_mean`, `running_var`, each [C]."""
        key = name.strip("/").replace("/", ".")
        parts = [f"{key}.{part}" for part in ("weight", "bias", "running_mean", "running_var")]
        inputs = [x, *(self.weight(part, weights[part]) for part in parts)]
        return self.node("BatchNormalization", name, inputs, epsilon=BATCH_NORM_EPSILON)

    def graph(self, inputs: Iterable[onnx.ValueInfoProto], outputs: Iterable[onnx.ValueInfoProto]) -> onnx.GraphProto:
        """The collected nodes as a graph, also used for the bodies of If and Loop."""
        return helper.make_graph(self.nodes, self.name, list(inputs), list(outputs), self.initializers)

    def model(
        self,
        inputs: Iterable[onnx.ValueInfoProto],
        outputs: Iterable[onnx.ValueInfoProto],
        functions: Sequence[onnx.FunctionProto] = (),
    ) -> onnx.ModelProto:
        """The collected nodes as a model with inferred shapes."""
        domains = sorted({function.domain for function in functions})
        opsets = [helper.make_opsetid("", OPSET), *(helper.make_opsetid(domain, 1) for domain in domains)]
        model = helper.make_model(
            self.graph(inputs, outputs),
            producer_name="sample_models",
            ir_version=IR_VERSION,
            opset_imports=opsets,
            functions=functions,
        )
        return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


def floats(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    """A float32 input or output; a text in `shape` is a symbolic dimension."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def fold_batch_norm(weights: Weights, conv: str, norm: str) -> Weights:
    """Copy of `weights` with the normalization folded per output channel.

    W' = W*g/s, B' = b - m*g/s, s = sqrt(v + epsilon).
    """
    folded = {key: value for key, value in weights.items() if not key.startswith(f"{norm}.")}
    factor = weights[f"{norm}.weight"] / np.sqrt(weights[f"{norm}.running_var"] + BATCH_NORM_EPSILON)
    folded[f"{conv}.weight"] = (weights[f"{conv}.weight"] * factor[:, None, None, None]).astype(np.float32)
    folded[f"{conv}.bias"] = (weights[f"{norm}.bias"] - weights[f"{norm}.running_mean"] * factor).astype(np.float32)
    return folded


def pow2_int8(array: np.ndarray, exponent: int | None = None) -> np.ndarray:
    """`array` through symmetric per-tensor int8 with scale 2**exponent; by default the smallest that does not clip."""
    if exponent is None:
        exponent = int(np.ceil(np.log2(np.abs(array).max() / 127)))
    scale = 2.0**exponent
    return (np.clip(np.rint(array / scale), -128, 127) * scale).astype(np.float32)


def nodes_of(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """All nodes: main graph, bodies of control flow, local functions."""

    def walk(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
        for node in nodes:
            yield node
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    yield from walk(attribute.g.node)

    yield from walk(model.graph.node)
    for function in model.functions:
        yield from walk(function.node)


def strip_exporter_traces(model: onnx.ModelProto) -> None:
    """Remove stack traces and the like (they hold machine paths); keep the module paths of nodes, `KEPT_METADATA`."""
    for node in nodes_of(model):
        node.doc_string = ""
        kept = [(entry.key, entry.value) for entry in node.metadata_props if entry.key in KEPT_METADATA]
        del node.metadata_props[:]
        for key, value in kept:
            node.metadata_props.add(key=key, value=value)
    graph = model.graph
    for holder in (model, graph, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        holder.doc_string = ""
        del holder.metadata_props[:]


def save(model: onnx.ModelProto, path: Path) -> None:
    """Check the model and write it; the bytes depend on the model only.

    Raises `ValueError` on a missing or repeated node name and on traces of the machine,
    `onnx.checker.ValidationError` on a bad model.
    """
    model.ir_version = IR_VERSION
    names = Counter(node.name for node in nodes_of(model))
    if repeated := [name for name, count in names.items() if count > 1 or not name]:
        raise ValueError(f"node names missing or repeated: {repeated}")
    data = model.SerializeToString(deterministic=True)
    if found := [trace for trace in MACHINE_TRACES if trace.encode() in data]:
        raise ValueError(f"traces of the machine in {path.name}: {found}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    onnx.checker.check_model(str(path), full_check=True)
    print(f"{path.name}: {len(model.graph.node)} nodes, {len(data):,} bytes")


def save_external(model: onnx.ModelProto, path: Path, threshold: int = 1024) -> None:
    """Write initializers of at least `threshold` bytes to `<path>.data`, in order, and the model that uses them."""
    with path.with_name(path.name + ".data").open("wb") as out:
        for tensor in model.graph.initializer:
            if len(tensor.raw_data) >= threshold:
                location = {"location": f"{path.name}.data", "offset": out.tell(), "length": out.write(tensor.raw_data)}
                tensor.ClearField("raw_data")
                tensor.data_location = TensorProto.EXTERNAL
                for key, value in location.items():
                    tensor.external_data.add(key=key, value=str(value))
    save(model, path)


def run(model: onnx.ModelProto | Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Outputs of the model in onnxruntime without graph optimization."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    return list(ort.InferenceSession(source, options, providers=["CPUExecutionProvider"]).run(None, feeds))
