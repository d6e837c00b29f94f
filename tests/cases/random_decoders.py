"""Small decoders with random weights, of several kinds: the sample's script with other heads, norms and MLPs."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np

#: ``grouped``: as the sample: two query heads on a KV head, biases, a gate in the MLP, the head is the embedding. ``normed``: the
#: same with norms of queries and keys. ``plain``: a KV head for each head, two matrices and a GELU, a head of its own.
Kind = Literal["grouped", "normed", "plain"]
SAMPLES = Path(__file__).parents[2] / "sample_models"
HIDDEN, HEADS, INNER, VOCABULARY = 64, 4, 128, 300


def random_decoder(path: Path, kind: Kind, *, layers: int, heads: int = HEADS) -> Path:
    """Write a decoder of ``kind`` to ``path``, its weights beside it."""
    script = _script()
    script.Decoder = {"grouped": script.Decoder, "normed": _normed(script), "plain": _plain(script)}[kind]
    kv_heads = heads if kind == "plain" else heads // 2
    script.write(
        path,
        script.Shape(
            layers=layers, hidden=HIDDEN, heads=heads, kv_heads=kv_heads, intermediate=INNER, vocabulary=VOCABULARY
        ),
    )
    return path


def _script() -> ModuleType:
    """The script of the sample as a module of its own; it imports its neighbours."""
    sys.path.insert(0, str(SAMPLES))
    try:
        spec = importlib.util.spec_from_file_location("qwen2_shape", SAMPLES / "qwen2_shape.py")
        assert spec is not None
        assert spec.loader is not None
        found = importlib.util.module_from_spec(spec)
        sys.modules["qwen2_shape"] = found  # where dataclasses look for their module
        spec.loader.exec_module(found)
        return found
    finally:
        sys.path.remove(str(SAMPLES))


def _normed(script: Any) -> type:
    class Normed(script.Decoder):  # type: ignore[misc]
        def rotate(self, x: str, cos: str, sin: str, name: str) -> str:
            """Of queries and keys that are normed first, over a head."""
            whole = self.shape
            self.shape = replace(whole, hidden=whole.head_size)
            normed = self.norm(x, f"{name}_norm")
            self.shape = whole
            return super().rotate(normed, cos, sin, name)  # type: ignore[no-any-return]

    return Normed


def _plain(script: Any) -> type:
    class Plain(script.Decoder):  # type: ignore[misc]
        def layer(self, x: str, layer: int, cos: str, sin: str, mask: str) -> str:
            """Attention, and two matrices with x · (1 + erf(x / √2)) / 2 between them."""
            shape, name = self.shape, f"/model/layers.{layer}"
            attended = self.attention(self.norm(x, f"{name}/input_layernorm"), layer, cos, sin, mask)
            x = self.node("Add", f"{name}/Add", [x, attended])
            normed = self.norm(x, f"{name}/post_attention_layernorm")
            wide = self.linear(normed, f"{name}/mlp/fc1", shape.hidden, shape.intermediate, bias=True)
            turned = self.node("Div", f"{name}/mlp/Div", [wide, self.constant(2**0.5, np.float32)])
            share = self.node("Erf", f"{name}/mlp/Erf", [turned])
            share = self.node("Add", f"{name}/mlp/Add", [share, self.constant(1.0, np.float32)])
            share = self.node("Mul", f"{name}/mlp/Mul", [wide, share])
            inner = self.node("Mul", f"{name}/mlp/Mul_1", [share, self.constant(0.5, np.float32)])
            narrow = self.linear(inner, f"{name}/mlp/fc2", shape.intermediate, shape.hidden, bias=True)
            return self.node("Add", f"{name}/Add_1", [x, narrow])  # type: ignore[no-any-return]

        def decoder(self) -> Any:
            """The whole graph."""
            shape = self.shape
            table = self.external("model.embed_tokens.weight", (shape.vocabulary, shape.hidden), 0.02)
            x = self.node("Gather", "/model/embed_tokens/Gather", [table, "input_ids"])
            mask, (cos, sin) = self.mask(), self.rotations()
            for layer in range(shape.layers):
                x = self.layer(x, layer, cos, sin, mask)
            head = self.external("lm_head.weight", (shape.hidden, shape.vocabulary), 0.02)
            self.node("MatMul", "/lm_head/MatMul", [self.norm(x, "/model/norm"), head], "logits")
            return self.graph(*self.ends())

    return Plain
