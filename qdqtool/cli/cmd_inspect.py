"""Show inputs, outputs, operators, parameters, QDQ coverage and dynamic dimensions of MODEL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from qdqtool.cli.options import command, load_model, model_argument
from qdqtool.cli.render import Out, megabytes, plural, say, table

if TYPE_CHECKING:
    import onnx_ir as ir


@command()
@model_argument
@click.option(
    "--target", metavar="NAME|FILE", help="Say whether what is compiled in MODEL is for this target as it is."
)
def inspect(out: Out, model: str, target: str | None) -> None:
    """Show inputs, outputs, operators, parameters, QDQ coverage and dynamic dimensions of MODEL."""
    graph = load_model(model)
    found = describe(graph)
    if target is not None:
        from qdqtool.npu.compiled import findings
        from qdqtool.targets.loading import load_target

        for finding in findings(graph, load_target(target)):
            out.warn(f"{finding.where}: {finding.message}; {finding.hint}")
    out.result(found, lambda: _render(found))


def describe(model: ir.Model) -> dict[str, Any]:
    """What `inspect` says, JSON-ready. Parameters are elements of initializers and Constants; bytes as stored."""
    from collections import Counter

    from qdq_passes.graph.uses import all_nodes
    from qdq_passes.qdq.look.pairs import is_dequantize, is_quantize, qdq_pairs

    nodes = all_nodes(model)
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
        "dynamic_dims": list(dict.fromkeys(d if d is not None else "?" for d in dims)),
        "qdq": {
            "q": sum(is_quantize(n) for n in nodes),
            "dq": sum(is_dequantize(n) for n in nodes),
            "pairs": len(pairs),
            "weights": sum(p.kind != "activation" for p in pairs),
            "coverage": _coverage(nodes),
        },
        "metadata": dict(model.metadata_props),
        **({"programs": programs} if programs else {}),
        **_decoder(model),
    }


def _decoder(model: ir.Model) -> dict[str, Any]:
    """Where the KV cache of a decoder is, and what its other inputs and outputs are for; empty for any other model."""
    from qdq_passes.decoder.look.io import decoder_io
    from qdq_passes.errors import UnsupportedError
    from qdq_passes.pipeline.pipeline import run_pipeline

    opened = run_pipeline(model, "inline-functions", copy=True).model if model.functions else model
    try:
        io = decoder_io(opened)
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


def _programs(model: ir.Model) -> list[dict[str, str | int]]:
    from qdqtool.npu.compiled import described

    return described(model)


def _has_tensor(node: ir.Node) -> bool:
    import onnx_ir as ir

    attribute = node.attributes.get("value")
    return attribute is not None and not attribute.is_ref() and attribute.type == ir.AttributeType.TENSOR


def _coverage(nodes: list[ir.Node]) -> float:
    """Share of the linear and convolutional nodes whose first two inputs are dequantized values, 0..1."""
    from qdq_passes.qdq.look.pairs import is_dequantize

    linear = [n for n in nodes if n.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul")]
    dequantized = [
        n for n in linear if all(v is not None and (p := v.producer()) and is_dequantize(p) for v in n.inputs[:2])
    ]
    return round(len(dequantized) / len(linear), 4) if linear else 0.0


def _value(value: ir.Value) -> dict[str, Any]:
    shape = None if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]
    return {"name": value.name, "dtype": value.dtype.name.lower() if value.dtype is not None else None, "shape": shape}


def _render(found: dict[str, Any]) -> None:
    qdq = found["qdq"]
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in found["opsets"].items())
    say(f"IR {found['ir_version']}, opset {opsets}" + (f", made by {found['producer']}" if found["producer"] else ""))
    say(f"{plural(found['nodes'], 'node')}, {found['parameters']:,} parameters, {megabytes(found['parameter_bytes'])}")
    say(
        f"{plural(qdq['pairs'], 'QDQ pair')} ({qdq['weights']} on weights), {qdq['coverage']:.0%} of linear layers quantized"
    )
    if found["dynamic_dims"]:
        say(f"dynamic dimensions: {', '.join(found['dynamic_dims'])}")
    for line in _decoder_lines(found):
        say(line)
    for program in found.get("programs", ()):
        about = (
            program.get("error") or f"for {program['target']} {program['target_version']}, {program['bytes']:,} bytes"
        )
        say(f"{program['node']}: a program {about}")
    say()
    rows = [("input", v["name"], v["dtype"], v["shape"]) for v in found["inputs"]]
    table(
        ("", "name", "type", "shape"),
        [*rows, *(("output", v["name"], v["dtype"], v["shape"]) for v in found["outputs"])],
    )
    say()
    table(("operator", "count"), list(found["ops"].items()))


def _decoder_lines(found: dict[str, Any]) -> list[str]:
    """Roles in one line, then one for the keys and one for the values of the cache."""
    if "cache" not in found:
        return []
    roles = [(role, found["decoder"][role]) for role in ("ids", "mask", "positions", "logits")]
    lines = ["decoder: " + ", ".join(f"{role} {name}" for role, name in roles if name is not None)]
    for part in ("key", "value"):
        pairs = [pair for pair in found["cache"] if pair["part"] == part]
        first, last = pairs[0], pairs[-1]
        to = f" … {last['past']} → {last['present']}" if len(pairs) > 1 else ""
        updates = ", ".join(dict.fromkeys(f"{pair['update']} along axis {pair['axis']}" for pair in pairs))
        lines.append(
            f"cache of {part}s: {plural(len(pairs), 'layer')}, {first['past']} → {first['present']}{to}, {updates}"
        )
    return lines


command = inspect
