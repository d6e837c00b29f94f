"""Show inputs, outputs, operators, parameters, QDQ coverage and dynamic dimensions of MODEL."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from qdqtool.cli.commands import command_of
from qdqtool.cli.render import Out, megabytes, plural, say, table
from qdqtool.verbs.inspect import Inspect


@command_of(Inspect)
def inspect(out: Out, asked: Inspect) -> None:
    found = replace(asked, warn=out.warn).run()
    out.result(found, lambda: _render(found))


def _render(found: dict[str, Any]) -> None:
    qdq = found["qdq"]
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in found["opsets"].items())
    say(f"IR {found['ir_version']}, opset {opsets}" + (f", made by {found['producer']}" if found["producer"] else ""))
    say(f"{plural(found['nodes'], 'node')}, {found['parameters']:,} parameters, {megabytes(found['parameter_bytes'])}")
    say(
        f"{plural(qdq['pairs'], 'QDQ pair')} ({qdq['weights']} on weights), {qdq['coverage']:.0%} of linear layers quantized"
    )
    kinds = {"qlinear": "QLinear operator", "integer": "integer product", "nbits": "packed product"}
    counts = [plural(qdq[key], word) for key, word in kinds.items() if qdq[key]]
    if counts:
        say(", ".join(counts))
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
