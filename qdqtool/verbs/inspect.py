"""The verb `inspect`: what a model holds."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from qdq_passes._lazy_dataclass import dataclass

from qdqtool.options import option
from qdqtool.verbs.groups import MODEL, Path, Warns
from qdqtool.verbs.verb import Verb, function_of

if TYPE_CHECKING:
    import onnx_ir as ir

#: Operators that coverage is a share of.
LINEAR = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True, kw_only=True)
class Inspect(Warns, Verb[dict[str, Any]]):
    """Show inputs, outputs, operators, parameters, QDQ coverage and dynamic dimensions of MODEL."""

    model: Path = field(kw_only=False, metadata=MODEL)
    target: Path | None = option(
        None, "Say whether what is compiled in MODEL is for this target as it is.", value="NAME|FILE", use="read"
    )

    def run(self) -> dict[str, Any]:
        """JSON-ready: see `describe`."""
        from qdqtool.io.files.progress import pass_on
        from qdqtool.io.models.load import load, missing_warnings, missing_weights

        graph = load(self.model, weights=False)
        pass_on(missing_warnings(missing_weights(graph)), self.warn)
        found = describe(graph)
        if self.target is not None:
            from qdqtool.npu.compiled import findings
            from qdqtool.targets.loading import load_target

            wrong = findings(graph, load_target(self.target))
            pass_on([f"{each.where}: {each.message}; {each.hint}" for each in wrong], self.warn)
        return found


def describe(model: ir.Model) -> dict[str, Any]:
    """What `inspect` says, JSON-ready. Parameters are elements of initializers and Constants; bytes as stored."""
    from collections import Counter

    from qdq_passes.graph.uses import all_nodes
    from qdq_passes.qdq.look.pairs import is_dequantize, is_quantize, qdq_pairs

    from qdqtool.io.models.load import missing_weights

    nodes, missing = all_nodes(model), missing_weights(model)
    ops = Counter(f"{n.domain}::{n.op_type}" if n.domain not in ("", "ai.onnx") else n.op_type for n in nodes)
    tensors = [v.const_value for g in model.graphs() for v in g.initializers.values() if v.const_value is not None]
    tensors += [n.attributes["value"].as_tensor() for n in nodes if n.op_type == "Constant" and _has_tensor(n)]
    pairs = qdq_pairs(model)
    programs = _programs(model) if "com.microsoft" in model.opset_imports else []
    inputs = [v for v in model.graph.inputs if v.name not in model.graph.initializers]
    dims = [d.value for v in inputs if v.shape is not None for d in v.shape if not isinstance(d, int)]
    return {
        "inputs": [_value(v) for v in inputs],
        "outputs": [_value(v) for v in model.graph.outputs],
        "opset": model.opset_imports.get("", model.opset_imports.get("ai.onnx", 0)),
        "opsets": dict(sorted(model.opset_imports.items())),
        "ir_version": model.ir_version,
        "producer": " ".join(t for t in (model.producer_name, model.producer_version) if t),
        "nodes": len(nodes),
        "ops": dict(sorted(ops.items(), key=lambda item: (-item[1], item[0]))),
        "functions": len(model.functions),
        "parameters": sum(t.size for t in tensors),
        "parameter_bytes": sum(t.nbytes for t in tensors),
        **({"missing_weights": sum(missing.values()), "missing_files": missing} if missing else {}),
        "dynamic_dims": list(dict.fromkeys(d if d is not None else "?" for d in dims)),
        "qdq": {
            "q": sum(is_quantize(n) for n in nodes),
            "dq": sum(is_dequantize(n) for n in nodes),
            "pairs": len(pairs),
            "weights": sum(p.kind != "activation" for p in pairs),
            "coverage": _coverage(nodes),
            **_integers(nodes),
        },
        "metadata": dict(model.metadata_props),
        **({"programs": programs} if programs else {}),
        **_decoder(model),
    }


def _decoder(model: ir.Model) -> dict[str, Any]:
    """Where the KV cache of a decoder is, and what its other inputs and outputs are for; empty for any other model."""
    from qdq_passes.decoder.look.io import decoder_io
    from qdq_passes.errors import UnsupportedError

    try:
        io = decoder_io(_inlined(model) if model.functions else model)
    except UnsupportedError:
        return {}
    entries = [node for node in model.graph if node.op_identifier() in model.functions]
    calls = {value.name: node for node in entries for value in node.inputs if value is not None}
    updates = {pair.past.name: calls.get(pair.past.name, pair.update) for pair in io.pairs}
    names = {"ids": io.ids, "mask": io.mask, "positions": io.positions, "logits": io.logits}
    return {
        "cache": [
            {
                "layer": pair.layer, "part": pair.part, "past": pair.past.name, "present": pair.present.name,
                "axis": pair.axis, "batch_axis": pair.batch_axis, "update": updates[pair.past.name].op_type,
                "node": updates[pair.past.name].name,
            }
            for pair in io.pairs
        ],
        "decoder": {
            **{role: value.name if value is not None else None for role, value in names.items()},
            "layers": io.layers,
            "others": [value.name for value in io.others],
            "reasons": dict(io.reasons),
        },
    }  # fmt: skip


def _inlined(model: ir.Model) -> ir.Model:
    from qdq_passes.pipeline.pipeline import run_pipeline

    return run_pipeline(model, "inline-functions", copy=True).model


def _programs(model: ir.Model) -> list[dict[str, str | int]]:
    from qdqtool.npu.compiled import described

    return described(model)


def _has_tensor(node: ir.Node) -> bool:
    import onnx_ir as ir

    attribute = node.attributes.get("value")
    return attribute is not None and not attribute.is_ref() and attribute.type == ir.AttributeType.TENSOR


def _integers(nodes: list[ir.Node]) -> dict[str, int]:
    """How many operators compute on integers: QLinear ones and their like, integer products, MatMulNBits and its like."""
    from qdq_passes.graph.operators.qoperators import form_of
    from qdq_passes.integers.look.packed_weights import is_packed

    return {
        "qlinear": sum(form_of(n) is not None and not _is_product(n) for n in nodes),
        "integer": sum(_is_product(n) for n in nodes),
        "nbits": sum(is_packed(n) for n in nodes),
    }


def _is_product(node: ir.Node) -> bool:
    """Whether ``node`` multiplies integers, at run time's scales or without any."""
    from qdq_passes.integers.look.integer_ops import INTEGER_PRODUCTS
    from qdq_passes.integers.look.integer_products import is_integer_product

    return is_integer_product(node) or node.op_type in INTEGER_PRODUCTS


def _coverage(nodes: list[ir.Node]) -> float:
    """Share of the linear and convolutional nodes whose first two inputs are dequantized values, or that multiply integers or
    packed weights, 0..1."""
    from qdq_passes.graph.operators.qoperators import form_of
    from qdq_passes.integers.look.packed_weights import is_packed
    from qdq_passes.qdq.look.pairs import is_dequantize

    linear = [n for n in nodes if n.op_type in LINEAR]
    on_integers = [
        n for n in nodes if _is_product(n) or is_packed(n) or ((form := form_of(n)) and form.float_op in LINEAR)
    ]
    dequantized = [
        n for n in linear if all(v is not None and (p := v.producer()) and is_dequantize(p) for v in n.inputs[:2])
    ]
    whole = len(linear) + len(on_integers)
    return round((len(dequantized) + len(on_integers)) / whole, 4) if whole else 0.0


def _value(value: ir.Value) -> dict[str, Any]:
    shape = None if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]
    return {"name": value.name, "dtype": value.dtype.name.lower() if value.dtype is not None else None, "shape": shape}


inspect = function_of(Inspect)
