"""A decoder of two layers: as static graphs of every kind with their manifest, as a dynamic graph, and in numpy, written apart.

Its positions are a table, its second layer may see a window only, and its weights are random: a token at a wrong position, a
padded row that is seen, or a row of the cache in a wrong slot changes the logits by more than rounding does."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from qdq_passes.decoder.look.record import CacheTensor, Decoder, Layout, MaskInput

from qdqtool.llm.folder.manifest import Manifest, Part, StaticModel, write_manifest
from qdqtool.llm.plan.specializations import Specialization

Array = npt.NDArray[Any]
VOCABULARY, WIDTH, HEADS, SIZE, LAYERS, POSITIONS = 50, 16, 2, 8, 2, 64
#: Logits are about 1; sums of at most 64 float32 products, two layers deep, differ by less.
TOLERANCE = 1e-5
Scatter = Literal["ScatterElements", "ScatterND", "TensorScatter"]
Counted = Literal["positions", "index", "last_slot"]


def weights() -> dict[str, Array]:
    """The weights, by name."""
    random = np.random.default_rng(7)

    def draw(*shape: int) -> Array:
        return random.normal(size=shape).astype(np.float32) / np.float32(np.sqrt(shape[0] if len(shape) > 1 else 1))

    found = {"tokens": random.normal(size=(VOCABULARY, WIDTH)), "places": random.normal(size=(POSITIONS, WIDTH))}
    for layer in range(LAYERS):
        for name in ("query", "key", "value", "out"):
            found[f"{name}{layer}"] = draw(WIDTH, HEADS * SIZE)
        found[f"up{layer}"], found[f"down{layer}"] = draw(WIDTH, 2 * WIDTH), draw(2 * WIDTH, WIDTH)
    found["head"] = draw(WIDTH, VOCABULARY)
    return {name: array.astype(np.float32) for name, array in found.items()}


def teacher_forced(ids: Sequence[int], window: int = 0) -> Array:
    """Logits [tokens, vocabulary] of a whole text, in float64; the second layer sees ``window`` keys, or all for 0."""
    w = {name: array.astype(np.float64) for name, array in weights().items()}
    count = len(ids)
    x = w["tokens"][list(ids)] + w["places"][:count]
    for layer in range(LAYERS):
        q, k, v = ((x @ w[f"{n}{layer}"]).reshape(count, HEADS, SIZE).swapaxes(0, 1) for n in ("query", "key", "value"))
        scores = q @ k.swapaxes(1, 2) / np.sqrt(SIZE)
        for query in range(count):
            scores[:, query, query + 1 :] = -np.inf
            if window and layer == 1:
                scores[:, query, : max(0, query - window + 1)] = -np.inf
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        x = x + (shares @ v).swapaxes(0, 1).reshape(count, HEADS * SIZE) @ w[f"out{layer}"]
        x = x + np.tanh(x @ w[f"up{layer}"]) @ w[f"down{layer}"]
    return x @ w["head"]


@cache
def last_logits(ids: tuple[int, ...], window: int = 0) -> Array:
    """Logits [vocabulary] of the last of ``ids``."""
    found: Array = teacher_forced(ids, window)[-1]
    return found


@dataclass(frozen=True, kw_only=True)
class Form:
    """What kind of static graphs.

    Args:
        layout: where the cache is updated.
        scatter: operator that updates it in place.
        window: keys that the second layer sees; 0 for all.
        masks: made by the host, or on the graph of the positions.
        counted: what the host says about positions.
        all_logits: logits of all tokens.
        parts: graphs of a model, 1 or 2.
    """

    layout: Layout = "in-place"
    scatter: Scatter = "ScatterElements"
    window: int = 0
    masks: Literal["input", "graph"] = "input"
    counted: Counted = "positions"
    all_logits: bool = False
    parts: int = 1


def folder(path: Path, dimensions: Sequence[tuple[int, int, int]], form: Form = Form(), **more: Any) -> Path:
    """A folder of graphs for (batch size, sequence length, context length); ``more`` goes to the manifest."""
    path.mkdir(parents=True, exist_ok=True)
    models = []
    for batch, seq_len, ctx_len in dimensions:
        static = _Static(form, batch, seq_len, ctx_len)
        name = Specialization.of(batch, seq_len, ctx_len).name
        files = [f"{name}.onnx"] if form.parts == 1 else [f"{name}_part{i}.onnx" for i in range(form.parts)]
        parts = []
        for file, model in zip(files, static.models(), strict=True):
            onnx.checker.check_model(model, full_check=form.scatter != "TensorScatter")
            onnx.save(model, path / file)
            graph = model.graph
            parts.append(
                Part(file=file, inputs=tuple(v.name for v in graph.input), outputs=tuple(v.name for v in graph.output))
            )
        models.append(StaticModel(name=name, parts=tuple(parts), decoder=static.decoder()))
    write_manifest(path, Manifest(layout=form.layout, source_sha256="0" * 64, models=tuple(models), **more))
    return path


class _Graph:
    """Nodes, initializers and typed values as they are made."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = dict(weights())
        self.count = 0

    def __call__(self, op: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        self.count += 1
        name = out or f"{op}_{self.count}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"n_{name}", **attributes))
        return name

    def constant(self, values: Any, dtype: Any = np.int64) -> str:
        array = np.array(values, dtype)
        name = f"c_{array.dtype}_{'x'.join(map(str, array.shape))}_{zlib.crc32(array.tobytes())}"
        self.constants[name] = array
        return name

    def heads(self, x: str, weight: str) -> str:
        shaped = self("Reshape", self("MatMul", x, weight), self.constant([0, -1, HEADS, SIZE]))
        return self("Transpose", shaped, perm=[0, 2, 1, 3])

    def attend(self, query: str, keys: str, values: str, bias: str, layer: int) -> str:
        scores = self("MatMul", query, self("Transpose", keys, perm=[0, 1, 3, 2]))
        scaled = self("Mul", scores, self.constant(SIZE**-0.5, np.float32))
        mixed = self("MatMul", self("Softmax", self("Add", scaled, bias), axis=-1), values)
        merged = self("Reshape", self("Transpose", mixed, perm=[0, 2, 1, 3]), self.constant([0, -1, HEADS * SIZE]))
        return self("MatMul", merged, f"out{layer}")

    def after(self, x: str, attended: str, layer: int) -> str:
        x = self("Add", x, attended)
        inner = self("Tanh", self("MatMul", x, f"up{layer}"))
        return self("Add", x, self("MatMul", inner, f"down{layer}"), out=f"hidden{layer}")


class _Static:
    """The graph for B rows, S tokens, C slots."""

    def __init__(self, form: Form, batch: int, seq_len: int, ctx_len: int) -> None:
        self.form, self.batch, self.seq_len, self.ctx_len = form, batch, seq_len, ctx_len
        self.graph = _Graph()
        self.cut = 0
        self._build()

    def decoder(self) -> Decoder:
        form, slides = self.form, self.form.layout == "slide"
        names = {"positions": "position_ids", "index": "first", "last_slot": "past_seq_len"}
        masks = [MaskInput(name="attention_mask")]
        if form.window:
            masks.append(MaskInput(name=f"attention_mask_w{form.window}", window=form.window))
        return Decoder(
            layout=form.layout,
            phase="decode" if self.seq_len == 1 else "prefill",
            batch_size=self.batch,
            seq_len=self.seq_len,
            ctx_len=self.ctx_len,
            ids="input_ids",
            logits="logits",
            last_index="" if form.all_logits else "last_index",
            masks=tuple(masks) if form.masks == "input" else (),
            total="total_seq_len" if form.counted == "last_slot" and not slides else "",
            cache=tuple(
                CacheTensor(past=f"past.{n}.{p}", present=f"present.{n}.{p}", layer=n, part=p, axis=2)  # type: ignore[arg-type]
                for n in range(LAYERS)
                for p in ("key", "value")
            ),
            **{form.counted: names[form.counted]},
        )

    def values(self) -> dict[str, onnx.ValueInfoProto]:
        """Every value that may be an input or output of a part."""
        b, s, c = self.batch, self.seq_len, self.ctx_len
        slides = self.form.layout == "slide"
        kinds: dict[str, tuple[int, list[int]]] = {
            "input_ids": (TensorProto.INT64, [b, s]),
            "position_ids": (TensorProto.INT64, [b, s]),
            "first": (TensorProto.INT64, [b]),
            "past_seq_len": (TensorProto.INT32, [1, 1]),
            "total_seq_len": (TensorProto.INT32, [1]),
            "last_index": (TensorProto.INT64, [b]),
            "attention_mask": (TensorProto.FLOAT, [b, 1, s, c]),
            f"attention_mask_w{self.form.window}": (TensorProto.FLOAT, [b, 1, s, c]),
            "hidden0": (TensorProto.FLOAT, [b, s, WIDTH]),
            "logits": (TensorProto.FLOAT, [b, s if self.form.all_logits else 1, VOCABULARY]),
        }
        for layer in range(LAYERS):
            for part in ("key", "value"):
                kinds[f"past.{layer}.{part}"] = (TensorProto.FLOAT, [b, HEADS, c - s if slides else c, SIZE])
                kinds[f"present.{layer}.{part}"] = (TensorProto.FLOAT, [b, HEADS, s if slides else c, SIZE])
        return {name: helper.make_tensor_value_info(name, *kind) for name, kind in kinds.items()}

    def models(self) -> list[onnx.ModelProto]:
        """The parts: all, or up to the first layer and from the second."""
        nodes = self.graph.nodes
        pieces = [nodes] if self.form.parts == 1 else [nodes[: self.cut], nodes[self.cut :]]
        known, made = self.values(), []
        for number, piece in enumerate(pieces):
            read = {name for node in piece for name in node.input}
            written = {name for node in piece for name in node.output}
            wanted = {n for n in known if n.startswith("present.") or n == "logits"} | (
                {"hidden0"} if number + 1 < len(pieces) else set()
            )
            if self.decoder().total and number == 0:
                read.add("total_seq_len")
            graph = helper.make_graph(
                piece,
                "tiny",
                [v for n, v in known.items() if n in read - written],
                [v for n, v in known.items() if n in written & wanted],
                [numpy_helper.from_array(a, n) for n, a in self.graph.constants.items() if n in read],
            )
            opset = 24 if self.form.scatter == "TensorScatter" else 18
            made.append(
                helper.make_model(
                    graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11 if opset > 22 else 10
                )
            )
        return made

    def _positions(self) -> str:
        steps = list(range(self.seq_len))
        if self.form.counted == "positions":
            return "position_ids"
        if self.form.counted == "index":
            first = self.graph("Reshape", "first", self.graph.constant([self.batch, 1]))
            return self.graph("Add", first, self.graph.constant([steps]))
        last = self.graph("Cast", "past_seq_len", to=TensorProto.INT64)
        return self.graph("Add", last, self.graph.constant([[step - self.seq_len + 1 for step in steps]]))

    def _bias(self, positions: str, window: int) -> str:
        if self.form.masks == "input":
            return f"attention_mask_w{window}" if window else "attention_mask"
        g, b, s, c = self.graph, self.batch, self.seq_len, self.ctx_len
        slots = g.constant(np.arange(c).reshape(1, 1, 1, c))
        if self.form.layout == "in-place":
            last = g("Reshape", positions, g.constant([b, 1, s, 1]))
        else:
            last = g.constant(np.arange(c - s, c).reshape(1, 1, s, 1))
        seen = g("LessOrEqual", slots, last)
        if window:
            seen = g("And", seen, g("Greater", slots, g("Sub", last, g.constant(window))))
        if self.form.layout == "slide":
            end = g("Gather", positions, g.constant([s - 1]), axis=1)
            first = g("Sub", g.constant(c - 1), g("Reshape", end, g.constant([b, 1, 1, 1])))
            seen = g("And", seen, g("GreaterOrEqual", slots, first))
        return g("Where", seen, g.constant(0, np.float32), g.constant(-1e9, np.float32))

    def _cached(self, layer: int, part: str, new: str, positions: str) -> str:
        g, b, s = self.graph, self.batch, self.seq_len
        past, present = f"past.{layer}.{part}", f"present.{layer}.{part}"
        if self.form.layout == "slide":
            g("Identity", new, out=present)
            return g("Concat", past, new, axis=2)
        if self.form.scatter == "TensorScatter":
            first = g("Gather", positions, g.constant(0), axis=1)
            return g("TensorScatter", past, new, first, out=present, axis=2)
        row = g("Reshape", positions, g.constant([b, 1, s, 1]))
        if self.form.scatter == "ScatterElements":
            index = g("Expand", row, g.constant([b, HEADS, s, SIZE]))
            return g("ScatterElements", past, index, new, out=present, axis=2)
        where = np.stack(np.meshgrid(np.arange(b), np.arange(HEADS), np.arange(s), indexing="ij"), -1)[..., :2]
        index = g("Concat", g.constant(where), g("Expand", row, g.constant([b, HEADS, s, 1])), axis=3)
        return g("ScatterND", past, index, new, out=present)

    def _build(self) -> None:
        g = self.graph
        positions = self._positions()
        x = g("Add", g("Gather", "tokens", "input_ids"), g("Gather", "places", positions))
        for layer in range(LAYERS):
            if layer and self.form.parts == 2:  # the second part counts for itself
                self.cut = len(g.nodes)
                positions = self._positions()
            bias = self._bias(positions, self.form.window if layer == 1 else 0)
            query, key, value = (g.heads(x, f"{name}{layer}") for name in ("query", "key", "value"))
            keys = self._cached(layer, "key", key, positions)
            values = self._cached(layer, "value", value, positions)
            x = g.after(x, g.attend(query, keys, values, bias, layer), layer)
        if not self.form.all_logits:
            x = g("GatherND", x, g("Reshape", "last_index", g.constant([self.batch, 1, 1])), batch_dims=1)
        g("MatMul", x, "head", out="logits")


def dynamic(path: Path, *, positions: bool = True, mask: bool = True) -> Path:
    """The same decoder with dynamic lengths, as exporters write it; with or without the inputs for positions and mask."""
    g = _Graph()
    past = g("Gather", g("Shape", "past_key_values.0.key"), g.constant(2))
    count = g("Gather", g("Shape", "input_ids"), g.constant(1))
    total, one = g("Add", past, count), g.constant(1)
    places = "position_ids"
    if not positions:
        places = g("Unsqueeze", g("Range", past, total, one), g.constant([0]))
    queries = g("Unsqueeze", g("Range", past, total, one), g.constant([1]))
    seen = g("LessOrEqual", g("Range", g.constant(0), total, one), queries)
    if mask:
        real = g("Unsqueeze", g("Cast", "attention_mask", to=TensorProto.BOOL), g.constant([1, 2]))
        seen = g("And", real, seen)
    bias = g("Where", seen, g.constant(0, np.float32), g.constant(-1e9, np.float32))
    x = g("Add", g("Gather", "tokens", "input_ids"), g("Gather", "places", places))
    for layer in range(LAYERS):
        query, key, value = (g.heads(x, f"{name}{layer}") for name in ("query", "key", "value"))
        kept = [
            g("Concat", f"past_key_values.{layer}.{part}", new, out=f"present.{layer}.{part}", axis=2)
            for part, new in (("key", key), ("value", value))
        ]
        x = g.after(x, g.attend(query, *kept, bias, layer), layer)
    g("MatMul", x, "head", out="logits")

    def value_of(name: str, kind: int, *shape: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    inputs = [value_of("input_ids", TensorProto.INT64, "batch", "sequence")]
    inputs += [value_of("attention_mask", TensorProto.INT64, "batch", "total")] * mask
    inputs += [value_of("position_ids", TensorProto.INT64, "batch", "sequence")] * positions
    outputs = [value_of("logits", TensorProto.FLOAT, "batch", "sequence", VOCABULARY)]
    for layer in range(LAYERS):
        for part in ("key", "value"):
            shape = ("batch", HEADS, "past", SIZE)
            inputs.append(value_of(f"past_key_values.{layer}.{part}", TensorProto.FLOAT, *shape))
            shape = ("batch", HEADS, "past + sequence", SIZE)
            outputs.append(value_of(f"present.{layer}.{part}", TensorProto.FLOAT, *shape))
    constants = [numpy_helper.from_array(a, n) for n, a in g.constants.items()]
    graph = helper.make_graph(g.nodes, "tiny_dynamic", inputs, outputs, constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


def words(path: Path) -> Path:
    """A tokenizer whose words are ``w0`` … ``w49``; 0 is special."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    model = tokenizers.models.WordLevel({f"w{n}": n for n in range(VOCABULARY)}, unk_token="w1")
    found = tokenizers.Tokenizer(model)
    found.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    found.add_special_tokens(["w0"])
    found.save(str(path / "tokenizer.json"))
    return path / "tokenizer.json"


def characters(path: Path) -> Path:
    """A tokenizer of bytes: no merges, so that a character may be four tokens."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    found = tokenizers.Tokenizer(tokenizers.models.BPE({letter: n for n, letter in enumerate(letters)}, []))
    found.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = tokenizers.decoders.ByteLevel()
    found.save(str(path / "tokenizer.json"))
    return path / "tokenizer.json"
