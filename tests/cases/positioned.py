"""QDQ graphs with given power-of-two positions, written as float operators: for tests of what moves positions."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir
from qdq_passes.qdq.look.pairs import qdq_pairs

from tests.cases.small_models import model

#: Shapes of parameters by the first letter of their name, and the integers they hold.
_PARAMETERS = {"w": ("1,1,1,1", "64"), "b": ("1", "32"), "m": ("1,1", "96"), "k": ("1,1,1,1", "100")}
_NODE = re.compile(r"(?P<name>\w+): (?P<outputs>[\w, ]+) = (?P<op>\w+)(?P<attributes><.*>)?\((?P<inputs>.*)\)")


def positioned(
    nodes: Sequence[str],
    places: Mapping[str, int],
    *,
    outputs: Sequence[str],
    constants: Sequence[str] = (),
    scales: Mapping[str, str] | None = None,
    types: Mapping[str, str] | None = None,
    floats: Collection[str] = (),
    opset: int = 21,
) -> ir.Model:
    """A graph x float[1,1,4,4] → ``outputs``, with a pair on each tensor that has a position.

    Args:
        nodes: ``conv: y = Conv(x, w, b)``; names that begin with w, b, m or k are parameters, in stored integers.
        places: tensor → position p of its scale 2^-p.
        outputs: the graph's outputs.
        constants: further initializers, as ONNX text.
        scales: tensor → tensor whose scale initializer it reads too.
        types: tensor → integer type, int8 by default; ``uint8`` has zero point 128.
        floats: parameters that stay float, with a Q and a DQ.
        opset: version of the operators.
    """
    scales, types = scales or {}, types or {}
    inits, head, body = list(constants), [], []

    def halves(tensor: str, source: str, target: str) -> list[str]:
        dtype, scale, integers = types.get(tensor, "int8"), scales.get(tensor, tensor), f"{tensor}_i"
        middle = {"uint8": 128, "uint16": 32768}.get(dtype, 0)
        if scale == tensor:
            inits.append(f"float {tensor}_scale = {{{2.0 ** -places[tensor]!r}}}")
        inits.append(f"{dtype} {tensor}_zero = {{{middle}}}")
        pair = f"{scale}_scale, {tensor}_zero"
        if tensor[0] in _PARAMETERS and tensor not in floats:
            shape, value = _PARAMETERS[tensor[0]]
            inits.append(f"{dtype}[{shape}] {tensor}_quantized = {{{value}}}")
            return [f"[{tensor}_dq] {target} = DequantizeLinear({tensor}_quantized, {pair})"]
        if tensor[0] in _PARAMETERS:
            shape, value = _PARAMETERS[tensor[0]]
            inits.append(f"float[{shape}] {tensor} = {{{int(value) * 2.0 ** -places[tensor]!r}}}")
        q = f"[{tensor}_q] {integers} = QuantizeLinear({source}, {pair})"
        return [q, f"[{tensor}_dq] {target} = DequantizeLinear({integers}, {pair})"]

    for tensor in places:
        if tensor == "x" or tensor[0] in _PARAMETERS:
            head += halves(tensor, tensor, f"{tensor}_d")
    for text in nodes:
        match = _NODE.fullmatch(text)
        assert match is not None, text
        read = [i.strip() for i in match["inputs"].split(",")]
        written = [o.strip() for o in match["outputs"].split(",")]
        inputs = ", ".join(f"{i}_d" if i in places and i not in outputs else i for i in read)
        names = ", ".join(f"{o}_QuantizeLinear_Input" if o in places and o in outputs else o for o in written)
        body.append(f"[{match['name']}] {names} = {match['op']}{match['attributes'] or ''}({inputs})")
        for o in written:
            if o in places:
                body += halves(o, f"{o}_QuantizeLinear_Input", o) if o in outputs else halves(o, o, f"{o}_d")
    ends = ", ".join(f"float[n{i},c{i},h{i},w{i}] {o}" for i, o in enumerate(outputs))
    text = "\n".join([*head, *body])
    signature = f"g (float[1,1,4,4] x) => ({ends}) <{', '.join(inits)}>"
    return model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{signature} {{\n{text}\n}}')


def places_of(graph: ir.Model) -> dict[str, int]:
    """Tensor → position, of every pair whose scale is one power of two."""
    found = {}
    for pair in qdq_pairs(graph):
        position = pair.encoding.position if pair.encoding is not None else None
        if position is not None and len(position) == 1:
            found[pair.tensor] = position[0]
    return found
